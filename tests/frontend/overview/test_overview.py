"""A tenant's overview: usage, budgets and their forecast, errors, expiring keys, first steps."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone

from frontend.times import ZONE_COOKIE
from frontend.views.overview.overview import LAST_DAY, outlook
from tenants.models import ApiKey, LimitScope, LimitSet, State, Tenant
from tests.fleet.fake import FakeGateways
from tests.frontend.clients import address, client_of, user_of
from tests.tenants.making import make_adapter, make_base, make_key, make_tenant, make_version
from tests.tenants.refusing import met
from tests.tenants.spending import spend

pytestmark = pytest.mark.usefixtures("one_moment")

NOW = datetime(2026, 5, 20, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 5, 21, tzinfo=UTC)
OPERATOR = LimitSet.Author.OPERATOR


@pytest.fixture
def developer(tenant: Tenant) -> Client:
    return client_of(tenant, "developer")


@pytest.mark.parametrize(
    ("left", "per_s", "words"),
    [
        (0, 1.0, "Used up: requests are refused until 21 May 2026, 00:00 UTC."),
        (-5, 0.0, "Used up: requests are refused until 21 May 2026, 00:00 UTC."),
        (100, 0.0, "No usage in the last 24 hours."),
        (3600, 1.0, "Runs out on 20 May 2026, 13:00 UTC at the rate of the last 24 hours."),
        (43_200, 1.0, "Lasts until it renews, at the rate of the last 24 hours."),
        (10**18, 1e-9, "Lasts until it renews, at the rate of the last 24 hours."),
    ],
)
def test_when_a_budget_ends(left: int, per_s: float, words: str) -> None:
    assert outlook(left, per_s, NOW, MIDNIGHT, LAST_DAY) == words


@pytest.mark.parametrize("role", ["owner", "admin", "operator"])
def test_admins_see_what_is_spent_of_each_budget(
    tenant: Tenant, key: ApiKey, role: str, django_assert_max_num_queries: Any
) -> None:
    LimitScope().store(OPERATOR, {"cost_per_month": 50_000_000, "tokens_per_day": 214})
    spend(key, timezone.now())
    spend(key, timezone.now())
    client = client_of(tenant, role)
    client.get(address(tenant, "overview"))
    most = 12 + (role == "operator")  # the banner asks whether there is only a password
    with django_assert_max_num_queries(most):
        page = client.get(address(tenant, "overview"))
    month, day = page.context["budgets"]
    assert (month.used, month.limit, month.text) == (33, 50_000_000, "$0.000033 of $50.00")
    assert (day.used, day.limit, day.text) == (214, 214, "214 of 214")
    assert day.outlook.startswith("Used up: requests are refused until")
    text = page.content.decode()
    assert '<meter min="0" max="214" low="171" high="203"' in text
    (item,) = page.context["attention"]
    assert (item.title, item.action) == ("Tokens per day: 100% used", "Limits")
    assert "Errors and refusals</h2>" not in text


def test_without_a_budget_it_says_where_to_set_one(tenant: Tenant, admin: Client) -> None:
    text = admin.get(address(tenant, "overview")).content.decode()
    assert "No budget is set" in text and f'href="/t/{tenant.slug}/limits">Set budget' in text


@pytest.mark.parametrize(("role", "budgets"), [("developer", False), ("viewer", True)])
def test_others_see_no_errors_and_developers_no_budget(
    tenant: Tenant, key: ApiKey, role: str, budgets: bool
) -> None:
    met(key, timezone.now(), "failed", code="engine_lost")
    page = client_of(tenant, role).get(address(tenant, "overview"))
    assert ("budgets" in page.context) == budgets and "engine_lost" not in page.content.decode()


def test_a_developer_sees_his_own_usage(tenant: Tenant, key: ApiKey, developer: Client) -> None:
    spend(key, timezone.now())
    spend(make_key(tenant, created_by=user_of(developer))[0], timezone.now())
    page = developer.get(address(tenant, "overview"))
    assert page.context["month"]["requests"] == page.context["day"]["requests"] == 1
    assert "with keys you created" in page.content.decode()


def test_a_viewer_sees_the_tenants_figures_and_is_offered_nothing_else(
    tenant: Tenant, key: ApiKey
) -> None:
    event = spend(key, timezone.now())
    viewer = client_of(tenant, "viewer")
    page = viewer.get(address(tenant, "overview"))
    assert page.context["month"]["requests"] == 1 and "budgets" in page.context
    assert "Upload adapter" not in page.text and "Quick start" not in page.text
    assert "Set budget" not in page.text
    usage = viewer.get(address(tenant, "usage"))
    assert [row["requests"] for _, row in usage.context["rows"]] == [1]
    assert viewer.get(address(tenant, f"requests/{event.id}")).status_code == 404


def test_the_last_24_hours_and_the_month_are_told_apart(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    for hours in (1, 23, 30):
        spend(key, timezone.now() - timedelta(hours=hours))
    spend(make_key(make_tenant())[0], timezone.now())
    page = admin.get(address(tenant, "overview"))
    assert page.context["day"]["requests"] == 2


def test_errors_and_refusals_of_the_last_day_are_counted_by_their_codes(
    tenant: Tenant, key: ApiKey, admin: Client, operator: Client
) -> None:
    now = timezone.now()
    limited: dict[str, Any] = {"limit_kind": "requests_per_minute", "limit_scope": "key"}
    met(key, now, "refused", 614, code="rate_limit_exceeded", **limited)
    met(key, now - timedelta(hours=5), "failed", 2, code="engine_lost")
    met(key, now - timedelta(hours=26), "failed", 5, code="engine_lost")
    met(key, now, "completed", 5)
    met(make_key(make_tenant())[0], now, "refused", 9, code="model_not_found")
    page = admin.get(address(tenant, "overview"))
    assert [(one["outcome"], one["code"], one["count"]) for one in page.context["failures"]] == [
        ("refused", "rate_limit_exceeded", 614), ("failed", "engine_lost", 2),
    ]  # fmt: skip
    text = page.content.decode()
    assert "Requests per minute of the key" in text
    assert "/t/acme/requests?period=24h&amp;outcome=refused" in text
    found = operator.get("/operate/").context["failures"]
    assert [(one["code"], one["count"]) for one in found] == [
        ("rate_limit_exceeded", 614), ("model_not_found", 9), ("engine_lost", 2),
    ]  # fmt: skip


def test_the_chart_and_the_adapters_are_of_the_chosen_period(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    now, where = timezone.now(), address(tenant, "overview")
    assert "chart" not in admin.get(where).context
    used: dict[str, Any] = {"prompt_tokens": 70, "cached_tokens": 20, "output_tokens": 9}
    met(key, now, requests=6, adapter="support", bucket=0, **used)
    met(key, now, "refused", 2, adapter="support", code="rate_limit_exceeded")
    met(key, now, "failed", code="engine_lost")
    met(key, now - timedelta(days=3), requests=50, adapter="invoices")
    met(make_key(make_tenant())[0], now, requests=100, adapter="others")

    def shown(**query: str) -> tuple[list[tuple[str, str]], list[tuple[str, int]]]:
        context = admin.get(where, query).context
        series = [(one.name, one.total) for one in context["chart"].series]
        return series, [(row.name, row.sums.requests) for row in context["adapters"]]

    of_hour = [("support", 8), ("Without an adapter", 1)]
    answered = [("Answered", "6"), ("Refused", "2"), ("Failed", "1")]
    assert shown(period="1h") == shown(period="24h", show="no-such") == (answered, of_hour)
    assert shown(period="7d")[1] == [("invoices", 50), *of_hour]
    tokens = [("Uncached prompt", "50"), ("Cached prompt", "20"), ("Output", "9")]
    assert shown(show="tokens")[0] == tokens
    assert shown(show="wrong")[0] == answered[1:]
    lines = admin.get(where, {"period": "1h"}).context["lines"]
    assert [[cell.text for cell in cells] for _, cells, _ in lines][-1] == ["6", "2", "1"]


def test_the_chart_says_when_it_was_drawn(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    """In the reader's time zone: the figures above it change by themselves, the chart does not."""
    url = address(tenant, "overview")
    assert "As of" not in admin.get(url).content.decode()
    met(key, timezone.now())
    admin.cookies[ZONE_COOKIE] = "Asia/Tokyo"
    page = admin.get(url).content.decode()
    at = timezone.now().astimezone(ZoneInfo("Asia/Tokyo"))
    shown = re.search(r"As of <time [^>]*>([^<]*)</time>", page)
    assert shown and shown[1] == f"{at:%H:%M:%S}"


def test_reasons_of_failures_are_of_the_chosen_period(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    met(key, timezone.now() - timedelta(hours=3), "failed", 4, code="engine_lost")
    hour, day = (admin.get(address(tenant, "overview"), {"period": name}) for name in ("1h", "24h"))
    assert hour.context["failures"] == [] == hour.context["attention"]
    assert [one["count"] for one in day.context["failures"]] == [4]
    assert "4 requests failed in 24 hours" in day.text and "period=24h&amp;outcome" in day.text


def test_keys_that_expire_soon_are_told_to_those_who_can_rotate_them(
    tenant: Tenant, admin: Client, developer: Client
) -> None:
    soon, later = (timezone.now() + timedelta(days=days) for days in (3, 30))
    make_key(tenant, expires_at=soon)
    make_key(tenant, expires_at=later)
    make_key(tenant, expires_at=soon)[0].revoke()
    own, _ = make_key(tenant, expires_at=soon, created_by=user_of(developer))
    where = address(tenant, "overview")
    (both,) = admin.get(where).context["attention"]
    assert both.title == "2 keys expire within 14 days"
    listed = {row.key.expires_at for row in admin.get(both.url).context["keys"]}
    assert listed == {soon} and len(admin.get(both.url).context["keys"]) == 2
    assert [row.key for row in developer.get(both.url).context["keys"]] == [own]
    (item,) = developer.get(where).context["attention"]
    assert own.name in item.title and "expires" in item.title and item.action == "Rotate"
    viewers = client_of(tenant, "viewer").get(where)
    assert viewers.context["attention"] == [] and "Nothing needs attention." in viewers.text


def test_a_rejected_version_needs_attention_until_there_is_a_newer_one(
    tenant: Tenant, admin: Client
) -> None:
    adapter = make_adapter(tenant)
    reason = "rank 128 is above this base model's limit of 64"
    version = make_version(adapter, state=State.REJECTED)
    version.report = {"findings": [{"code": "rank", "message": reason}]}
    version.save()
    where = address(tenant, "overview")
    (item,) = admin.get(where).context["attention"]
    assert item.why == reason
    assert item.url.endswith(f"/adapters/{adapter.name}/versions/{version.number}")
    assert client_of(tenant, "viewer").get(where).context["attention"] == []
    assert admin.get(address(make_tenant("other"), "overview")).status_code == 404
    make_version(adapter)
    assert admin.get(where).context["attention"] == []


def test_rejected_versions_are_one_line_that_leads_to_all_of_them(
    tenant: Tenant, admin: Client
) -> None:
    for number in range(7):
        make_version(make_adapter(tenant, f"bad-{number}"), state=State.REJECTED)
    mended = make_adapter(tenant, "mended")
    make_version(mended, state=State.REJECTED)
    make_version(mended)
    (item,) = admin.get(address(tenant, "overview")).context["attention"]
    assert item.title == "7 versions were rejected" and "@1</strong>" in item.why
    listed = [row.adapter.name for row in admin.get(item.url).context["rows"]]
    assert listed == [f"bad-{number}" for number in range(7)]


@pytest.mark.parametrize(
    ("code", "refused", "answered", "listed"),
    [
        ("model_not_found", 1, 0, False),
        ("model_not_found", 9, 0, False),
        ("model_not_found", 10, 190, True),
        ("model_not_found", 10, 191, False),
        ("invalid_request", 400, 600, True),
        ("rate_limit_exceeded", 1, 9999, True),
    ],
)
def test_a_few_refusals_that_are_clients_faults_need_no_attention(
    tenant: Tenant, key: ApiKey, admin: Client, code: str, refused: int, answered: int, listed: bool
) -> None:
    met(key, timezone.now(), "refused", refused, code=code)
    met(key, timezone.now(), requests=answered)
    page = admin.get(address(tenant, "overview"))
    titles = [item.title for item in page.context["attention"]]
    s = "" if refused == 1 else "s"
    assert titles == ([f"{refused} request{s} refused in 24 hours"] if listed else [])


@pytest.mark.parametrize("role", ["admin", "developer", "viewer"])
def test_where_many_requests_fail_something_needs_attention(tenant: Tenant, role: str) -> None:
    client = client_of(tenant, role)
    key, _ = make_key(tenant, created_by=user_of(client))
    met(key, timezone.now(), "refused", 4, code="model_not_found")
    met(key, timezone.now(), requests=6)
    where = address(tenant, "overview")
    few = client.get(where)
    assert "4 of 10 requests failed or were refused in 24 hours: too few to judge." in few.text
    met(key, timezone.now() - timedelta(days=3), "failed", 393, code="engine_lost")
    met(key, timezone.now() - timedelta(days=3), requests=597)
    week = client.get(where, {"period": "7d"})
    counted = role == "admin"  # the others see no reasons
    share = "39.7% of requests failed or were refused in 7 days"
    assert ("393 requests failed in 7 days" if counted else share) in week.text
    assert "Nothing needs attention" not in few.text + week.text


def test_the_checklist_turns_green_and_goes(
    tenant: Tenant, admin: Client, gateways: FakeGateways
) -> None:
    where = address(tenant, "overview")
    page = admin.get(where)
    assert [step.done for step in page.context["steps"]] == [False] * 4
    assert "First steps" in page.content.decode()
    gateways.engines = [{"id": "e1"}]
    version = make_version(make_adapter(tenant))
    version.adapter.aliases.create(name="live", version=version)
    key, _ = make_key(tenant)
    assert [step.done for step in admin.get(where).context["steps"]] == [True] * 3 + [False]
    spend(key, timezone.now())
    page = admin.get(where)
    assert page.context["done"] and "First steps" not in page.content.decode()
    assert page.context["model"] == "support"


def test_the_snippets_name_the_address_and_a_model(tenant: Tenant, developer: Client) -> None:
    make_adapter(tenant)
    text = developer.get(address(tenant, "overview")).content.decode()
    for words in ("curl http://127.0.0.1:8000/v1/chat/completions", "from openai import OpenAI",
                  'baseURL: "http://127.0.0.1:8000/v1"',
                  '"model": "base"'):  # fmt: skip
        assert words in text
    assert text.count('<copy-button class="copy">') == 3


def test_the_snippets_name_what_an_engine_serves(
    tenant: Tenant, developer: Client, gateways: FakeGateways
) -> None:
    for name in ("a-base", "b-base"):
        make_base(name)
    assert '"model": "a-base"' in developer.get(address(tenant, "overview")).content.decode()
    gateways.engines = [{"id": "e1", "base_model": "b-base"}]
    assert '"model": "b-base"' in developer.get(address(tenant, "overview")).content.decode()


def test_a_suspended_tenant_is_told_who_can_mend_it(tenant: Tenant, admin: Client) -> None:
    Tenant.objects.update(status="suspended")
    assert "This tenant is suspended" in admin.get(address(tenant, "overview")).content.decode()
