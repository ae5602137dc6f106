"""Pages that speak of the same requests in the same time have the same sums of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from frontend.periods import PERIODS
from tenants.models import ApiKey, Tenant
from tests.frontend.clients import address, client_of
from tests.tenants.making import make_key, make_tenant
from tests.tenants.refusing import met
from tests.tenants.spending import spend

pytestmark = pytest.mark.usefixtures("one_moment")

AGES = [timedelta(), timedelta(hours=5), timedelta(days=3), timedelta(days=20), timedelta(days=40)]


@pytest.fixture
def traffic(tenant: Tenant, key: ApiKey) -> None:
    """At each age three requests that were answered, two that were refused and one that failed;
    and a check of the installation."""
    checks, _ = make_key(make_tenant("checks", internal=True))
    for age in AGES:
        at = timezone.now() - age
        met(key, at, "completed", 3)
        met(key, at, "refused", 2, code="rate_limit_exceeded")
        met(key, at, "failed", code="engine_lost")
        for _ in range(3):
            spend(key, at)
        met(checks, at, "completed", 100)
        spend(checks, at)


def said(client: Client, overview: str, requests: str, period: str) -> list[str]:
    """What the overview says of requests, checked against the list that it leads to."""
    page = client.get(overview, {"period": period})
    figures = {one.title: one for one in page.context["figures"]}
    assert figures["Requests"].url == f"{requests}?period={period}"
    counts = client.get(figures["Requests"].url).context["counts"]
    found = [figures["Requests"].value, figures["Errors and refusals"].note]
    assert found == [str(counts.requests), f"{counts.refused} refused, {counts.failed} failed"]
    return found


@pytest.mark.parametrize(("period", "ages"), [("1h", 1), ("24h", 2), ("7d", 3), ("30d", 4)])
def test_of_requests(
    tenant: Tenant, admin: Client, operator: Client, traffic: None, period: str, ages: int
) -> None:
    expected = [str(6 * ages), f"{2 * ages} refused, {ages} failed"]
    pages = address(tenant, "overview"), address(tenant, "requests")
    assert said(admin, *pages, period) == expected
    assert said(operator, reverse("operate"), reverse("operate_requests"), period) == expected


@pytest.mark.parametrize(("period", "ages"), [("24h", 2), ("7d", 3), ("30d", 4)])
def test_of_what_is_billed(
    tenant: Tenant,
    key: ApiKey,
    admin: Client,
    operator: Client,
    traffic: None,
    period: str,
    ages: int,
) -> None:
    for client, where in ((admin, address(tenant, "usage")), (operator, reverse("operate_usage"))):
        page = client.get(where, {"period": period})
        (billed,) = (one for one in page.context["stats"] if one.title == "Billed requests")
        assert billed.text == str(3 * ages)
    if period == "24h":
        spend(key, PERIODS[period].start(timezone.now()) - timedelta(minutes=1))  # too early
        overview = admin.get(address(tenant, "overview"))
        assert overview.context["day"]["requests"] == 3 * ages
    installation = operator.get(reverse("operate"), {"period": period})
    assert installation.context["billed"]["requests"] == 3 * ages


def test_a_list_of_all_requests_has_no_checks(operator: Client, traffic: None) -> None:
    page = operator.get(reverse("operate_requests"), {"period": "24h"})
    assert {row.slug for row in page.context["rows"]} == {"acme"}
    of_checks = operator.get(reverse("operate_requests"), {"period": "24h", "tenant": "checks"})
    assert len(of_checks.context["rows"]) == 2


def links(page: Any) -> set[str]:
    return {one.url for one in page.context["figures"]}


def test_who_sees_no_single_request_is_led_to_none(tenant: Tenant, traffic: None) -> None:
    viewer, requests = client_of(tenant, "viewer"), address(tenant, "requests")
    page = viewer.get(address(tenant, "overview"))
    assert links(page) == {"", f"{address(tenant, 'usage')}?period=24h"}
    assert f'href="{requests}?' not in page.text
    assert f'href="{requests}?' not in viewer.get(address(tenant, "usage"), {"period": "24h"}).text


def test_the_periods_cover_each_other() -> None:
    starts = [one.start(timezone.now()) for one in PERIODS.values()]
    assert starts == sorted(starts, reverse=True)
