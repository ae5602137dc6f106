"""The health strip: its figures, their comparison, whose requests they include, and their links."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from frontend.periods import PERIODS
from frontend.views.overview import health
from frontend.views.overview.health import HEIGHT, WIDTH, ComparedSums, HealthWindow
from inference.gateway.measuring.sums import BUCKETS
from inference.interfaces.directory import PICO
from tenants.models import ApiKey, Tenant
from tenants.models.usage.outcomes import COUNTS
from tests.frontend.clients import address, client_of, user_of
from tests.tenants.making import make_key, make_tenant
from tests.tenants.refusing import met

NOW = datetime(2026, 5, 20, 12, 30, tzinfo=UTC)


def figures(client: Client, where: str, **query: str) -> dict[str, Any]:
    page = client.get(where, query)
    assert page.status_code == 200
    return {one.title: one for one in page.context["figures"]}


# --- The period ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("period", "start", "end", "steps"),
    [
        ("1h", NOW - timedelta(minutes=58), NOW + timedelta(minutes=2), 30),
        ("24h", NOW.replace(minute=0) - timedelta(hours=23), NOW.replace(hour=13, minute=0), 24),
        ("7d", datetime(2026, 5, 14, tzinfo=UTC), datetime(2026, 5, 21, tzinfo=UTC), 27),
        ("30d", datetime(2026, 4, 21, tzinfo=UTC), datetime(2026, 5, 21, tzinfo=UTC), 30),
    ],
)
def test_a_period_has_whole_steps(period: str, start: datetime, end: datetime, steps: int) -> None:
    window = HealthWindow(PERIODS[period], NOW)
    assert (window.start, window.end) == (start, end)
    assert len(window.steps()) == steps and window.steps()[0] == start
    assert window.steps()[-1] <= NOW < end and 0 < window.passed <= 1


# --- Figures -------------------------------------------------------------------------------------


def row(start: datetime, bucket: int = 0, first_tokens: int = 0, **figures: int) -> dict[str, Any]:
    names = (*COUNTS, "refused", "failed", "decode_s")
    zeros: dict[str, Any] = {"start": start, **dict.fromkeys(names, 0)}
    buckets = [first_tokens if at == bucket else 0 for at in range(BUCKETS)]
    return zeros | {"first_tokens": buckets} | figures


def strip(*rows: dict[str, Any]) -> dict[str, health.Figure]:
    sums = ComparedSums.of(HealthWindow(PERIODS["24h"], NOW), rows)
    made = health.strip(sums, "/requests?period=24h", "/usage")
    return {one.title: one for one in made}


HOUR = NOW.replace(minute=0)
YESTERDAY = HOUR - timedelta(days=1)


def test_of_nothing_there_is_nothing_to_say() -> None:
    found = strip()
    assert [one.value for one in found.values()] == ["0", *["\u2013"] * 4, "$0.00"]
    assert {one.change for one in found.values()} == {""}
    assert found["TTFT p95"].path == "" and found["TTFT p95"].url == "/requests?period=24h"


def test_figures_and_their_changes() -> None:
    found = strip(
        row(YESTERDAY, 4, 48, requests=48, refused=0, failed=0, cost=4800 * PICO,
            decode_tokens=100, decode_s=1),
        row(HOUR, 3, 94, requests=94, refused=1, failed=1, cost=4700 * PICO,
            decode_tokens=120, decode_s=2),
    )  # fmt: skip
    requests, wrong, p50, p95, speed, spend = found.values()
    # 23.5 hours of the period have passed: the same part of the previous one had 47 requests.
    assert (requests.value, requests.change, requests.tone) == ("94", "+100%", "")
    assert (wrong.value, wrong.change, wrong.tone) == ("2.13%", "+2.13 pt", "bad")
    assert (wrong.note, wrong.url) == ("1 refused, 1 failed", "/requests?period=24h&outcome=wrong")
    assert (p50.value, p50.change, p50.tone) == ("60 ms", "\u221260 ms", "ok")
    assert (p95.value, p95.change, p95.tone) == ("78 ms", "\u221278 ms", "ok")
    assert (p50.url, p95.url) == tuple(f"/requests?period=24h&ttft={s}" for s in ("0.06", "0.078"))
    assert p50.path and p95.path
    assert (speed.value, speed.change, speed.tone) == ("60", "\u221240%", "bad")
    assert (spend.value, spend.change, spend.url) == ("$4,700.00", "unchanged", "/usage")


def test_percentiles_are_of_all_requests_of_the_period_together() -> None:
    found = strip(
        row(HOUR - timedelta(hours=1), requests=990, first_tokens=990),
        row(HOUR, requests=10, bucket=10, first_tokens=10),
    )
    # The mean of the two hours' percentiles would be more than five seconds.
    assert found["TTFT p95"].value == "9.60 ms"


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=40))
def test_a_line_stays_in_its_picture_and_has_gaps(values: list[float | None]) -> None:
    found = health.path(values).replace("M", " M").replace("L", " L").split(" ")
    numbers = [part.strip("ML") for part in found if part]
    points = list(zip(map(float, numbers[::2]), map(float, numbers[1::2]), strict=True))
    assert len(points) == sum(value is not None for value in values)
    assert all(0 <= x <= WIDTH + 0.1 and 0 <= y <= HEIGHT for x, y in points)
    runs = 0
    for before, value in zip([None, *values], values, strict=False):
        runs += value is not None and before is None
    assert health.path(values).count("M") == runs


# --- On the pages --------------------------------------------------------------------------------


@pytest.mark.parametrize("period", list(PERIODS))
def test_admins_see_the_whole_tenants(
    tenant: Tenant, key: ApiKey, admin: Client, period: str, django_assert_max_num_queries: Any
) -> None:
    now = timezone.now()
    met(key, now, requests=3, bucket=2)
    met(make_key(tenant)[0], now, "refused", 1, code="rate_limit_exceeded")
    met(make_key(make_tenant())[0], now, requests=100)
    admin.get(address(tenant, "overview"))
    with django_assert_max_num_queries(12):
        found = figures(admin, address(tenant, "overview"), period=period)
    assert (found["Requests"].value, found["Errors and refusals"].value) == ("4", "25%")
    assert found["Requests"].url == f"/t/acme/requests?period={period}"
    listed = admin.get(found["Errors and refusals"].url)
    assert listed.status_code == 200 and not listed.context["form"].errors


def test_a_developer_sees_that_of_his_own_keys(tenant: Tenant, key: ApiKey) -> None:
    client = client_of(tenant, "developer")
    met(key, timezone.now(), requests=9)
    met(make_key(tenant, created_by=user_of(client))[0], timezone.now(), requests=2)
    for period in ("1h", "24h"):
        found = figures(client, address(tenant, "overview"), period=period)
        assert found["Requests"].value == "2"


def test_operators_see_that_of_all_tenants(tenant: Tenant, key: ApiKey, operator: Client) -> None:
    met(key, timezone.now(), requests=3)
    met(make_key(make_tenant())[0], timezone.now(), requests=4)
    for period in PERIODS:
        found = figures(operator, "/operate/", period=period)
        assert found["Requests"].value == "7"
        usage = "24h" if period == "1h" else period
        assert found.pop("Cost").url == f"/operate/usage?period={usage}"
        for one in found.values():
            assert one.url.startswith(f"/operate/requests?period={period}")
            listed = operator.get(one.url)
            assert listed.status_code == 200, one.url
            start, end = listed.context["form"].window(NOW)
            assert (start, end) == (PERIODS[period].start(NOW), None)


def test_what_was_before_the_period_is_compared_with(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    met(key, timezone.now() - timedelta(hours=30), requests=100)
    found = figures(admin, address(tenant, "overview"))
    assert found["Requests"].value == "0"
    assert found["Requests"].change == "\u2212100%"


def test_an_odd_period_is_the_usual_one(tenant: Tenant, admin: Client) -> None:
    page = admin.get(address(tenant, "overview"), {"period": "forever"})
    assert page.context["period"].name == "24h"


def test_the_part_follows_its_period(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    text = admin.get(address(tenant, "overview"), {"period": "7d"}).content.decode()
    assert 'src="/t/acme/live/health?period=7d"' in text
    assert 'aria-label="Health, last 7 days"' in text
    met(key, timezone.now(), requests=5)
    part = admin.get("/t/acme/live/health", {"period": "7d"}).json()["html"]
    assert ">5</a>" in part and "style=" not in part
