"""The page of usage and cost: what is summed, over which hours, and how it is drawn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from frontend.views.usage import BY, UsageQuestion, change, forecast
from inference.interfaces.directory import MICRO, PICO
from inference.link.accounts import Usage
from tenants.models import ApiKey, EngineHour, Tenant, UsageSum, User
from tenants.utc import HOUR
from tests.frontend.clients import address, client_of
from tests.tenants.api.test_usage_api import read
from tests.tenants.making import make_key, make_tenant, make_user
from tests.tenants.refusing import met, refuse
from tests.tenants.spending import spend

pytestmark = pytest.mark.usefixtures("one_moment")

NOW = datetime(2026, 5, 20, 15, 30, tzinfo=UTC)


def tokens(prompt: int, cached: int = 0, output: int = 0) -> Usage:
    return Usage(prompt, cached, output, 0, 0.1, 0.2, 0.3, 0.9)


def asked(**given: Any) -> UsageQuestion:
    return UsageQuestion.of(given, NOW)


def day(number: int, hour: int = 0) -> datetime:
    return datetime(2026, 5, number, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "start", "end", "bucket"),
    [
        ({}, day(14), day(20, 16), "day"),
        ({"period": "24h"}, day(19, 16), day(20, 16), "hour"),
        ({"period": "30d"}, datetime(2026, 4, 21, tzinfo=UTC), day(20, 16), "day"),
        ({"period": "month"}, day(1), day(20, 16), "day"),
        ({"period": "custom"}, day(20), day(20, 16), "hour"),
        ({"period": "custom", "first": day(3).date(), "last": day(4).date()},
         day(3), day(5), "hour"),
        ({"period": "custom", "first": day(3).date(), "last": day(5).date()},
         day(3), day(6), "day"),
        ({"period": "custom", "first": day(20).date() - timedelta(days=61)},
         day(20) - timedelta(days=61), day(20, 16), "day"),
    ],
)  # fmt: skip
def test_periods(given: dict[str, Any], start: datetime, end: datetime, bucket: str) -> None:
    question = asked(**given)
    assert (question.start, question.end, question.bucket) == (start, end, bucket)
    assert question.before == (start - (end - start), start)
    assert next(iter(question.buckets())) == start


def test_a_long_period_is_cut_into_months() -> None:
    first = day(20).date() - timedelta(days=100)
    question = asked(period="custom", first=first)
    assert question.bucket == "month" and question.start == day(20) - timedelta(days=100)
    assert list(question.buckets()) == [
        datetime(2026, month, 1, tzinfo=UTC) for month in (2, 3, 4, 5)
    ]


@pytest.mark.parametrize(
    ("last", "until"),
    [(19, day(20)), (20, datetime(2026, 6, 1, tzinfo=UTC))],
)
def test_sums_of_a_month_that_goes_on_are_read_whole(last: int, until: datetime) -> None:
    assert asked(period="custom", first=day(1).date(), last=day(last).date()).until == until


def test_an_address_brings_the_same_view_back() -> None:
    given = {"first": day(3).date(), "last": day(5).date()}
    question = asked(period="custom", by="key", show="cost", **given)
    assert question.query(show="tokens") == (
        "period=custom&by=key&show=tokens&first=2026-05-03&last=2026-05-05"
    )


@pytest.mark.parametrize(
    ("now", "before", "words"),
    [
        (0, 0, "unchanged"),
        (1001, 1000, "unchanged"),
        (7, 0, "no previous usage"),
        (150, 100, "+50% vs previous period"),
        (0, 100, "\u2212100% vs previous period"),
        (123_400, 100, "+123,300% vs previous period"),
    ],
)
def test_change_in_words(now: int, before: int, words: str) -> None:
    assert change(now, before) == words


@pytest.mark.parametrize("role", ["owner", "admin", "developer", "viewer", "operator"])
def test_members_and_operators_see_it(tenant: Tenant, role: str) -> None:
    assert client_of(tenant, role).get(address(tenant, "usage")).status_code == 200


def test_outsiders_do_not(tenant: Tenant) -> None:
    assert client_of(tenant, "outsider").get(address(tenant, "usage")).status_code == 404


def test_nothing_yet_and_nothing_in_the_period_differ(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    assert "No usage yet" in admin.get(address(tenant, "usage")).content.decode()
    spend(key, timezone.now() - timedelta(days=100))
    page = admin.get(address(tenant, "usage"))
    assert "No usage in this period" in page.content.decode()
    assert page.context["chart"] is None


def test_figures_are_the_tenants_and_compared(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    now = timezone.now()
    spend(key, now, tokens(100, 40, 7))
    spend(key, now - timedelta(hours=30), tokens(50, 40, 14))
    spend(make_key(make_tenant())[0], now, tokens(10_000))
    page = admin.get(address(tenant, "usage"), {"period": "24h"})
    cost, expected, *others = page.context["stats"]
    assert expected.title.endswith(" forecast") and expected.change.endswith("so far")
    assert [(stat.text, stat.change) for stat in (cost, *others)] == [
        ("$0.000016", "+26% vs previous period"),
        ("1", "unchanged"),
        ("60", "+500% vs previous period"),
        ("40", "unchanged"),
        ("7", "\u221250% vs previous period"),
    ]


def test_the_most_used_are_stacked_and_the_rest_is_other(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    now = timezone.now()
    for i in range(1, 8):
        spend(key, now, tokens(100 * i), adapter=f"a{i}", model=f"a{i}")
    spend(key, now - HOUR, tokens(5), adapter="a7", model="a7")
    spend(key, now - HOUR, tokens(1))
    page = admin.get(address(tenant, "usage"), {"period": "24h", "by": "adapter", "show": "tokens"})
    chart = page.context["chart"]
    assert [(one.name, one.total) for one in chart.series] == [
        ("a7", "705"), ("a6", "600"), ("a5", "500"), ("a4", "400"), ("a3", "300"), ("Other", "301"),
    ]  # fmt: skip
    assert chart.series[-1].colour == "c0" and len({one.stripes for one in chart.series}) == 6
    drawn = [[cell.value for cell in cells] for _, cells in chart.lines]
    assert drawn[-2:] == [[5, 0, 0, 0, 0, 1], [700, 600, 500, 400, 300, 300]]
    assert drawn[:-2] == [[]] * 22, "hours without usage are gaps"
    assert [name for name, _ in page.context["rows"]][-1] == "base models"


@pytest.mark.parametrize("by", BY)
def test_all_stacks_are_alike(tenant: Tenant, key: ApiKey, admin: Client, by: str) -> None:
    """Even if the largest share is of no member, and of the base model itself."""
    now = timezone.now()
    spend(key, now, tokens(700))
    for i in range(1, 7):
        theirs, _ = make_key(tenant, created_by=make_user())
        spend(theirs, now, tokens(100 * i), adapter=f"a{i}", model=f"a{i}")
    with CaptureQueriesContext(connection) as asked:
        page = admin.get(address(tenant, "usage"), {"period": "24h", "by": by, "show": "tokens"})
    chart = page.context["chart"]
    assert [one.total for one in chart.series] == ["700", "600", "500", "400", "300", "300"]
    assert [cell.value for cell in chart.lines[-1][1]] == [700, 600, 500, 400, 300, 300]
    assert chart.series[-1].name == "Other"
    reads = [one for one in asked.captured_queries if UsageSum._meta.db_table in one["sql"]]
    assert len(reads) == 2, "by what is stacked, and by time; the others are sums of totals"


def test_a_year_is_exact_to_the_hour(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=364)
    for at, prompt in [(first - HOUR, 1000), (first, 1), (first + timedelta(days=150), 20),
                       (timezone.now(), 300)]:  # fmt: skip
        spend(key, at, tokens(prompt), adapter="a", model="a")
    query = {"period": "custom", "first": f"{first:%Y-%m-%d}", "show": "tokens"}
    page = admin.get(address(tenant, "usage"), query)
    assert page.context["asked"].bucket == "month"
    assert [stat.text for stat in page.context["stats"]][2:4] == ["3", "321"]
    assert page.context["stats"][2].change == "+200% vs previous period"
    ((name, row),) = page.context["rows"]
    assert (name, row["prompt_tokens"]) == ("a", 321)
    chart = page.context["chart"]
    drawn = [cells[0].value for _, cells in chart.lines if cells]
    assert drawn == [1, 20, 300] and len(chart.lines) in (12, 13)
    assert f"{first:%B %Y}</a></th>" in page.content.decode()
    for url, _ in page.context["csv"]:
        lines = read(admin.get(url))
        assert sum(int(line[lines[0].index("requests")]) for line in lines[1:]) == 3


def test_cost_is_drawn_in_units_of_the_currency(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    spend(key, timezone.now(), tokens(100_000_000))
    spend(key, timezone.now(), tokens(1), adapter="cheap", model="cheap")
    query = {"period": "24h", "show": "cost", "by": "model"}
    page = admin.get(address(tenant, "usage"), query)
    assert [cell.value for cell in page.context["chart"].lines[-1][1]] == [15.0, 1.5e-07]
    assert 'data-value="15.0"' in page.content.decode()


def test_keys_have_their_names_even_when_gone(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    gone, _ = make_key(tenant)
    spend(key, timezone.now(), tokens(9))
    spend(gone, timezone.now(), tokens(3))
    ApiKey.objects.filter(pk=key.pk).update(name="<billing>")
    ApiKey.objects.filter(pk=gone.pk).delete()
    page = admin.get(address(tenant, "usage"), {"by": "key"})
    assert [name for name, _ in page.context["rows"]] == ["<billing>", f"deleted key {gone.pk}"]
    assert "&lt;billing&gt;" in page.content.decode()


def test_what_the_table_leaves_out_is_summed_up(
    tenant: Tenant, key: ApiKey, admin: Client, django_assert_max_num_queries: Any
) -> None:
    for i in range(53):
        spend(key, timezone.now(), tokens(100 - i), adapter=f"a{i}", model=f"a{i}")
    with django_assert_max_num_queries(12):
        page = admin.get(address(tenant, "usage"))
    assert len(page.context["rows"]) == 50
    assert page.context["rest"]["uncached_tokens"] == 50 + 49 + 48


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"period": "decade"}, "Select a valid choice"),
        ({"by": "secret"}, "Select a valid choice"),
        ({"period": "custom", "first": "soon"}, "Enter a valid date"),
        ({"period": "custom", "first": "2026-05-03", "last": "2026-05-01"}, "is before 2026-05-03"),
        ({"period": "custom", "first": "2199-01-01", "last": "2199-01-02"}, "is in the future"),
        ({"period": "custom", "first": "0001-01-01", "last": "0001-01-02"}, "2000-01-01"),
        ({"period": "custom", "first": "2020-01-01", "last": "2021-06-01"}, "The maximum is 366"),
    ],
)
def test_what_makes_no_sense_is_told(
    tenant: Tenant, admin: Client, query: dict[str, str], words: str
) -> None:
    page = admin.get(address(tenant, "usage"), query)
    assert page.status_code == 422 and words in page.content.decode()


@pytest.mark.parametrize(
    ("now", "spent", "expected"),
    [
        (datetime(2026, 6, 16, tzinfo=UTC), 15, "$30.00"),
        (datetime(2026, 6, 1, 1, tzinfo=UTC), 1, "$30.00"),  # an hour counts as a day
        (datetime(2026, 6, 30, 23, 59, tzinfo=UTC), 0, "$0.00"),
    ],
)
def test_the_forecast_goes_on_at_the_pace_of_the_month(
    now: datetime, spent: int, expected: str
) -> None:
    told = forecast(spent * PICO, now, 40 * MICRO)
    assert (told.title, told.text) == ("June forecast", expected)
    assert told.change.startswith(f"${spent}.00 so far; ")
    assert told.change.endswith("of the $40.00 budget")


def test_what_is_shown_leads_to_what_is_behind_it(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    at = timezone.now().replace(minute=0, second=0, microsecond=0)
    event = spend(key, at, adapter="support", model="support")
    refuse(key, at, code="rate_limit_exceeded")
    met(key, at, "refused", code="rate_limit_exceeded")
    for by, group in (("adapter", "model=support"), ("key", f"key={key.pk}")):
        page = admin.get(address(tenant, "usage"), {"period": "24h", "by": by})
        ((_, row),) = page.context["rows"]
        assert group in row["url"] and row["share"] == 1
        *_, (hour, _, bar) = page.context["lines"]
        assert hour == at
        for url in (row["url"], bar):
            assert event.id in {row.event.id for row in admin.get(url).context["rows"]}
        assert row["url"] in page.content.decode().replace("&amp;", "&")
    days = admin.get(address(tenant, "usage"), {"period": "7d"}).context["lines"]
    deeper = admin.get(address(tenant, "usage") + days[-1][2]).context["asked"]
    assert (deeper.bucket, deeper.start) == ("hour", days[-1][0])
    (failure,) = page.context["failures"]
    assert (failure["code"], failure["count"]) == ("rate_limit_exceeded", 1)
    listed = f"{address(tenant, 'requests')}?{page.context['failures_in']}&outcome=refused"
    assert f"{listed}&q=rate_limit_exceeded" in page.content.decode().replace("&amp;", "&")
    assert "failures" not in client_of(tenant, "developer").get(address(tenant, "usage")).context


def test_operators_see_what_engines_cost_and_what_is_left(operator: Client, settings: Any) -> None:
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    one, other = make_tenant("one"), make_tenant("other")
    for tenant, prompt in ((one, 20_000_000), (other, 20_000_000)):  # 3.00 each
        spend(make_key(tenant)[0], now, tokens(prompt))
    for engine, slots in (("engine-1", 0b111111), ("engine-2", 0b1)):
        EngineHour.objects.create(hour=now, engine_id=engine, base_model="base", slots=slots)
    EngineHour.objects.create(hour=now, engine_id="engine-3", base_model="idle", slots=0b111)

    def page(**query: str) -> Any:
        return operator.get("/operate/usage", {"period": "24h", **query}).context

    told = {stat.title: (stat.text, stat.change) for stat in page()["stats"]}
    assert told["Engine hours"] == ("0.8", "$7.20 revenue per hour") and "Margin" not in told
    settings.ENGINE_HOUR_PRICE = 6 * MICRO
    told = {stat.title: (stat.text, stat.change) for stat in page()["stats"]}
    assert told["Margin"] == ("17%", "$1.00 after $5.00 for engines")
    base, idle = page(by="base_model")["more"]
    assert (base.name, base.hours, base.left) == ("base", 7 / 12, 5 * PICO // 2)
    assert (idle.name, idle.earned, idle.left, idle.share) == ("idle", 0, -3 * PICO // 2, None)
    rows = {name: row["url"] for name, row in page(by="tenant")["rows"]}
    assert rows[one.name].startswith(f"/t/{one.slug}/usage?period=24h")


def test_the_csv_links_ask_the_api_for_the_same(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    spend(key, timezone.now())
    page = admin.get(address(tenant, "usage"), {"period": "24h", "by": "key"})
    for url, _ in page.context["csv"]:
        answer = admin.get(url)
        assert answer.status_code == 200
        assert answer["Content-Type"] == "text/csv; charset=utf-8"
        assert "bucket=hour&by=key" in url


@pytest.fixture
def shared(tenant: Tenant) -> tuple[Client, Client]:
    """Clients of a developer and an admin who have each used a key of their own; a third key is of
    no member."""
    clients = client_of(tenant, "developer"), client_of(tenant, "admin")
    for i, client in enumerate(clients):
        user = User.objects.get(pk=client.session["_auth_user_id"])
        spend(make_key(tenant, created_by=user)[0], timezone.now(), tokens(10 * (i + 1)))
    spend(make_key(tenant)[0], timezone.now(), tokens(500))
    return clients


def test_a_developer_sees_what_keys_of_his_own_used(shared: tuple[Client, Client]) -> None:
    developer, admin = shared
    where = address(Tenant.objects.get(), "usage")
    for by in ("member", "key", "adapter", "model"):
        page = developer.get(where, {"by": by})
        assert page.context["stats"][3].text == "10"
        assert [row["prompt_tokens"] for _, row in page.context["rows"]] == [10]
        assert "Only keys you created" in page.content.decode()
    page = admin.get(where)
    assert page.context["stats"][3].text == "530"
    assert "Only keys you created" not in page.content.decode()


def test_admins_see_who_used_what(shared: tuple[Client, Client]) -> None:
    names = [User.objects.get(pk=one.session["_auth_user_id"]).username for one in shared]
    query = {"by": "member", "show": "tokens"}
    page = shared[1].get(address(Tenant.objects.get(), "usage"), query)
    rows = [(name, row["prompt_tokens"]) for name, row in page.context["rows"]]
    assert rows == [("no member", 500), (names[1], 20), (names[0], 10)]
    chart = page.context["chart"]
    assert [cell.value for cell in chart.lines[-1][1]] == [500, 20, 10]


def test_the_csv_is_of_the_same_usage_as_the_page(shared: tuple[Client, Client]) -> None:
    for client, expected in zip(shared, ({"10"}, {"10", "20", "500"}), strict=True):
        page = client.get(address(Tenant.objects.get(), "usage"), {"by": "member"})
        (url, _), _ = page.context["csv"]
        header, *lines = read(client.get(url))
        assert {dict(zip(header, line, strict=True))["prompt_tokens"] for line in lines} == expected


def test_a_developer_without_keys_is_told_so(tenant: Tenant, key: ApiKey) -> None:
    spend(key, timezone.now())
    page = client_of(tenant, "developer").get(address(tenant, "usage"))
    assert "None of your keys have been used yet." in page.content.decode()
