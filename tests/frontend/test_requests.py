"""The list of requests and the page of one: permissions, filters, and what is shown."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pytest_django.asserts import assertContains

from frontend.causes import cause
from frontend.formats import duration, exact_money
from frontend.views.operate.requests import InstallationFilter
from frontend.views.requests.request import rate
from frontend.views.requests.requests import PAGE, RequestFilter, search
from frontend.views.requests.timeline import SCALE, Timeline
from inference.errors import BY_CODE, ApiKeyRevoked
from inference.gateway.measuring.measures import outcome_of
from inference.ids import new_id
from inference.link.accounts import Usage
from tenants.billing.receipts import describe, signer, verify
from tenants.errors import TooManySaved
from tenants.listing import Filter, Where, mark_of, text_of
from tenants.models import ApiKey, Membership, SavedView, SupersededAttempt, Tenant, UsageEvent
from tenants.models.usage.ledger import COMMON
from tenants.models.usage.listed import REASONS, Mark, Outcome
from tenants.utc import HOUR
from tests.frontend.clients import client_of, user_of
from tests.tenants.making import make_adapter, make_key, make_tenant, make_version
from tests.tenants.refusing import met, refuse
from tests.tenants.spending import spend

MINUTE = timedelta(minutes=1)
ROLES = ("owner", "admin", "developer", "viewer", "operator")


def at(tenant: Tenant, *rest: str) -> str:
    return "/".join(["/t", tenant.slug, "requests", *rest])


def listed(client: Client, where: str, **query: Any) -> list[str]:
    """The ids on the page, in order."""
    page = client.get(where, query)
    assert page.status_code == 200, page.context["form"].errors
    return [row.event.id for row in page.context["rows"]]


def ago(minutes: float = 0) -> datetime:
    return timezone.now() - minutes * MINUTE


# --- Who sees what -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["owner", "admin", "operator"])
def test_who_sees_all_requests_of_the_tenant(tenant: Tenant, key: ApiKey, role: str) -> None:
    event, client = spend(key, ago()), client_of(tenant, role)
    spend(make_key(make_tenant())[0], ago())
    assert listed(client, at(tenant)) == [event.id]
    assert client.get(at(tenant, event.id)).status_code == 200
    assert client.get(at(tenant, event.id, "receipt")).status_code == 200


@pytest.mark.parametrize("role", ["developer", "viewer"])
def test_others_see_those_of_keys_that_they_made(tenant: Tenant, key: ApiKey, role: str) -> None:
    client = client_of(tenant, role)
    own = spend(make_key(tenant, created_by=user_of(client))[0], ago())
    others = spend(key, ago())
    playground = spend(ApiKey.objects.open_playground(tenant), ago())
    assert listed(client, at(tenant)) == [own.id]
    assert listed(client, at(tenant), id=others.id) == []
    assert client.get(at(tenant, own.id)).status_code == 200
    for event in (others, playground):
        assert client.get(at(tenant, event.id)).status_code == 404
        assert client.get(at(tenant, event.id, "receipt")).status_code == 404


def test_a_key_made_in_another_tenant_opens_nothing(tenant: Tenant, key: ApiKey) -> None:
    client = client_of(tenant, "developer")
    elsewhere = make_tenant()
    Membership.objects.create(user=user_of(client), tenant=elsewhere, role="developer")
    event = spend(make_key(elsewhere, created_by=user_of(client))[0], ago())
    assert listed(client, at(tenant)) == []
    assert client.get(at(tenant, event.id)).status_code == 404
    assert listed(client, at(elsewhere)) == [event.id]


def test_outsiders_and_anonymous_users_see_no_requests(tenant: Tenant, key: ApiKey) -> None:
    event = spend(key, ago())
    for where in (at(tenant), at(tenant, event.id), at(tenant, event.id, "receipt")):
        assert client_of(tenant, "outsider").get(where).status_code == 404
        assert client_of(tenant, "nobody").get(where).status_code == 302
    drawer = Client().get(at(tenant, event.id), headers={"HX-Request": "true"})
    assert (drawer.status_code, drawer["HX-Redirect"]) == (204, "/account/login/")


def test_a_request_that_may_not_be_recorded_yet_is_looked_for_again(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    where = at(tenant, f"req_{(id := new_id())}")
    page = admin.get(where)
    assert page.status_code == 202
    assertContains(page, "Not recorded yet", status_code=202)
    assertContains(page, '<meta http-equiv="refresh"', status_code=202)
    assert client_of(tenant, "outsider").get(where).status_code == 404
    spend(key, ago(), id=id)
    assertContains(admin.get(where), f"req_{id}")
    long_ago = f"{int((ago(16)).timestamp() * 1_000):012x}{id[12:]}"
    assert admin.get(at(tenant, long_ago)).status_code == 404


def test_only_operators_see_all_tenants(tenant: Tenant, key: ApiKey, operator: Client) -> None:
    event, other = spend(key, ago(2)), spend(make_key(make_tenant("other"))[0], ago(1))
    assert listed(operator, "/operate/requests") == [other.id, event.id]
    assert listed(operator, "/operate/requests", tenant="other") == [other.id]
    for role in ("owner", "outsider"):
        assert client_of(tenant, role).get("/operate/requests").status_code == 404


# --- The list ------------------------------------------------------------------------------------


def test_pages_go_on_where_the_last_one_ended(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    start = ago(60)
    # Three start at each moment, so that pages end between requests with the same start.
    made = [spend(key, start + timedelta(seconds=n // 3)) for n in range(2 * PAGE + 7)]
    made.sort(key=lambda event: event.mark, reverse=True)
    seen, query = [], QueryDict("outcome=answered")
    for expected in (PAGE, PAGE, 7):
        page = admin.get(at(tenant), query)
        seen += [row.event.id for row in page.context["rows"]]
        assert len(page.context["rows"]) == expected
        spend(key, ago())  # a newer request does not shift the pages
        query = QueryDict(page.context["next"])
    assert seen == [event.id for event in made] and not query


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)),
    st.from_regex(r"[\w-]{0,64}", fullmatch=True),
)
def test_a_mark_survives_an_address(moment: datetime, id: str) -> None:
    id = id.encode("ascii", "ignore").decode()
    mark = Mark(timezone.make_aware(moment), id)
    assert mark_of(text_of(mark)) == mark


@pytest.mark.parametrize("text", ["", "x", "12", "12-a b", "9" * 18 + "-", "-1-a"])
def test_what_is_no_mark_is_none(text: str) -> None:
    assert mark_of(text) is None


Finds = Callable[..., list[str]]


@pytest.fixture
def finds(tenant: Tenant, key: ApiKey, admin: Client) -> Finds:
    """A function that returns the names of the requests that match a query, out of requests that
    differ in every field."""
    other = make_key(tenant)[0]
    slow, quick = Usage(9, 0, 1, 0, 0, 0, 2.5, 9.0), Usage(9, 0, 1, 0, 0, 0, 0.1, 0.2)
    silent = Usage(9, 0, 0, 0, 0, 0, None, 20.0)
    named = {
        "base": spend(key, ago(1), quick),
        "pinned": spend(key, ago(2), quick, adapter="support", model="support@3"),
        "cut": spend(
            key, ago(3), quick, adapter="support", model="support", finish_reason="length"
        ),
        "slow": spend(other, ago(4), slow, adapter="sales", model="sales"),
        "left": spend(other, ago(5), silent, finish_reason="cancelled"),
        "lost": spend(other, ago(6), quick, finish_reason="engine_lost"),
        "yesterday": spend(key, ago(26 * 60), quick),
    }
    names = {event.id: name for name, event in named.items()}

    def find(**query: Any) -> list[str]:
        query = {
            k: key.pk if v == "first" else other.pk if v == "second" else v
            for k, v in query.items()
        }
        if "id" in query:
            query["id"] = query["id"] + named[query.pop("of")].id
        return [names[id] for id in listed(admin, at(tenant), **query)]

    return find


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, "base pinned cut slow left lost"),
        ({"period": "7d"}, "base pinned cut slow left lost yesterday"),
        ({"model": "support"}, "pinned cut"),
        ({"model": "support@3"}, "pinned"),
        ({"model": "base"}, "base left lost"),
        ({"model": "nothing"}, ""),
        ({"key": "first"}, "base pinned cut"),
        ({"outcome": "answered"}, "base pinned slow"),
        ({"outcome": "cut"}, "cut"),
        ({"outcome": "cancelled"}, "left"),
        ({"outcome": "failed"}, "lost"),
        ({"ttft": "2.5"}, "slow"),
        ({"total": "5"}, "slow left"),
        ({"total": "5", "key": "second", "outcome": "cancelled"}, "left"),
        ({"q": "SUPP"}, "pinned cut"),
        ({"q": "support@3"}, "pinned"),
        ({"q": "engine_lost"}, "lost"),
        ({"q": "e1", "outcome": "cut"}, "cut"),
        ({"q": "e1", "outcome": "failed"}, "lost"),
        ({"q": "nothing is called so"}, ""),
        ({"id": "", "of": "lost"}, "lost"),
        ({"id": "req_", "of": "yesterday"}, "yesterday"),
        ({"id": "chatcmpl-", "of": "cut", "outcome": "failed"}, "cut"),
        ({"id": "no such ", "of": "cut"}, ""),
    ],
)
def test_filters(finds: Finds, query: dict[str, str], found: str) -> None:
    assert finds(**query) == found.split()


def test_a_time_from_and_a_time_before(finds: Finds) -> None:
    def text(minutes: float) -> str:
        return ago(minutes).isoformat()

    assert finds(since=text(3.5)) == ["base", "pinned", "cut"]
    assert finds(since=text(4.5), until=text(2.5)) == ["cut", "slow"]
    assert finds(until=text(25 * 60), period="1h") == []
    assert finds(until=text(25 * 60), period="24h") == ["yesterday"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"key": "999999999"}, "key"),
        ({"key": "9" * 30}, "key"),
        ({"key": "x"}, "key"),
        ({"outcome": "odd"}, "outcome"),
        ({"period": "forever"}, "period"),
        ({"since": "soon"}, "since"),
        ({"until": "0001-01-01T00:00"}, "until"),
        ({"since": "2026-02-02T00:00", "until": "2026-02-01T00:00"}, "until"),
        ({"total": "-1"}, "total"),
        ({"ttft": "nan"}, "ttft"),
        ({"model": "\0"}, "model"),
        ({"q": "x" * 101}, "q"),
    ],
)
def test_what_makes_no_sense_is_said_by_its_field(
    tenant: Tenant, admin: Client, query: dict[str, str], field: str
) -> None:
    page = admin.get(at(tenant), query)
    assert (page.status_code, list(page.context["form"].errors)) == (422, [field])
    assert f'id="id_{field}_error"' in page.content.decode()


def test_a_search_finds_keys_by_their_names_and_refusals_by_what_they_say(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    web, foreign = (
        ApiKey.objects.issue(one, name="Web shop", scopes=["inference"])[0]
        for one in (tenant, make_tenant())
    )
    bought, limited = spend(web, ago(1)), refuse(web, ago(2), message="Too many: 60 per minute.")
    spend(key, ago(3)), spend(foreign, ago(4))
    wrong = refuse(key, ago(5), code="model_not_found", message="There is no model nobody@7.")
    searches: dict[str, list[Any]] = {
        "web sh": [bought, limited],
        f"lk_{web.prefix}": [bought, limited],
        "60 per": [limited],
        "model_not_found": [wrong],
        "NOBODY@7": [wrong],
        f"req_{wrong.id[:-1]}": [limited, wrong],
    }
    for words, found in searches.items():
        expected = [one.id for one in found]
        assert listed(admin, at(tenant), q=words) == expected, words
    client = client_of(tenant, "developer")
    assert listed(client, at(tenant), q="web sh") == []


def test_a_key_of_another_tenant_is_no_choice(tenant: Tenant, admin: Client) -> None:
    foreign = make_key(make_tenant())[0]
    assert admin.get(at(tenant), {"key": foreign.pk}).status_code == 422


def test_a_developer_chooses_from_keys_of_his_own(tenant: Tenant, key: ApiKey) -> None:
    client = client_of(tenant, "developer")
    own = make_key(tenant, created_by=user_of(client))[0]
    page = client.get(at(tenant), {"key": own.pk})
    assert [pk for pk, _ in page.context["form"]["key"].field.widget.choices] == ["", own.pk]
    assert client.get(at(tenant), {"key": key.pk}).status_code == 422


def test_a_search_looks_no_further_than_its_horizon(tenant: Tenant, key: ApiKey) -> None:
    made = [spend(key, ago(n)) for n in range(10)]
    rare = spend(key, ago(20), finish_reason="length")
    form = RequestFilter(QueryDict("outcome=cut"), tenant.keys.all())
    assert form.is_valid()
    where = Where.of_tenant(tenant)
    first = search(form, where, most=5)
    assert (list(first.events), first.searched_to) == ([], made[5].started_at)
    second = search(form, where, first.next, most=5)
    assert (list(second.events), second.searched_to, second.next) == ([rare], None, "")


def test_no_horizon_where_nothing_is_passed_over(tenant: Tenant, key: ApiKey) -> None:
    made = [spend(key, ago(n)) for n in range(10)]
    form = RequestFilter(QueryDict(), tenant.keys.all())
    assert form.is_valid()
    assert list(search(form, Where.of_tenant(tenant), most=5).events) == made


def test_nothing_yet_and_nothing_that_matches_differ(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    def said(**query: str) -> str:
        return admin.get(at(tenant), query).content.decode()

    assert "No requests yet" in said() and "curl http" in said()
    spend(key, ago(26 * 60))
    assert "No requests in this period" in said() and "curl http" not in said()
    assert "No request matches" in said(outcome="failed", period="7d")


def test_a_viewer_is_not_told_to_use_an_api_key(tenant: Tenant) -> None:
    page = client_of(tenant, "viewer").get(at(tenant)).content.decode()
    assert "see the requests of every key" in page and "curl http" not in page
    page = client_of(tenant, "developer").get(at(tenant)).content.decode()
    assert "No requests with your API keys yet" in page and "curl http" in page


@pytest.mark.parametrize(
    ("query", "live"),
    [
        ({}, ""),
        ({"outcome": "failed", "model": "a b", "period": "7d"}, "outcome=failed&amp;model=a+b"),
        ({"before": "1-"}, None),
        ({"until": "2030-01-01T00:00"}, None),
        ({"id": "abc"}, "q=abc"),
        ({"id": ""}, ""),
        ({"model": "x" * 255}, f"model={'x' * 255}"),
        ({"outcome": "odd"}, None),
    ],
)
def test_a_list_that_can_grow_is_live(
    tenant: Tenant, admin: Client, query: dict[str, str], live: str | None
) -> None:
    page = admin.get(at(tenant), query).content.decode()
    src = f"/t/acme/live/requests?{live}" if live else "/t/acme/live/requests"
    part = f'<live-part id="tail" topic="requests" tenant="acme" every="1.0" src="{src}">'
    assert (part in page) == (live is not None) == ("<live-part" in page)


def test_a_request_outlives_its_key_and_its_version(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    version = make_version(make_adapter(tenant))
    event = spend(key, ago(), version=version, adapter="support", model="support")
    assert ">support@1</a> on" in admin.get(at(tenant, event.id)).content.decode()
    version.delete()
    ApiKey.objects.all().delete()
    assert f"deleted key {key.pk}" in admin.get(at(tenant)).content.decode()
    page = admin.get(at(tenant, event.id)).content.decode()
    assert "deleted version" in page and f"deleted (number {key.pk}" in page


def test_few_queries_however_many_rows(
    tenant: Tenant, admin: Client, django_assert_max_num_queries: Any
) -> None:
    for n in range(PAGE + 5):
        spend(make_key(tenant)[0], ago(n))
    client = client_of(tenant, "developer")
    for who in (admin, client):
        with django_assert_max_num_queries(12):
            who.get(at(tenant), {"outcome": "answered", "model": "base"})


def test_operators_look_at_all_tenants_or_at_one(
    tenant: Tenant, key: ApiKey, operator: Client, django_assert_max_num_queries: Any
) -> None:
    make_tenant("other")
    old = spend(key, ago(3 * 24 * 60))
    for period in ("7d", "30d"):
        assert listed(operator, "/operate/requests", period=period) == [old.id]
    assert listed(operator, "/operate/requests", period="7d", tenant=tenant.slug) == [old.id]
    assert listed(operator, "/operate/requests", period="7d", tenant="other") == []
    assert listed(operator, "/operate/requests", id=old.id) == [old.id]
    assert operator.get("/operate/requests", {"tenant": "nobody"}).status_code == 422
    with django_assert_max_num_queries(12):
        listed(operator, "/operate/requests", period="30d", outcome="answered")


@pytest.mark.parametrize(
    ("query", "live"),
    [
        ({}, ""),
        (
            {"tenant": "acme", "outcome": "failed", "period": "24h"},
            "tenant=acme&amp;outcome=failed",
        ),
        ({"key": "1"}, ""),
        ({"until": "2030-01-01T00:00"}, None),
        ({"tenant": "nobody"}, None),
    ],
)
def test_an_operators_list_that_can_grow_is_live(
    tenant: Tenant, operator: Client, query: dict[str, str], live: str | None
) -> None:
    page = operator.get("/operate/requests", query).content.decode()
    src = f"/operate/live/requests?{live}" if live else "/operate/live/requests"
    named = query.get("tenant", "")
    part = f'<live-part id="tail" topic="requests" tenant="{named}" every="1.0" src="{src}">'
    assert (part in page) == (live is not None)
    assert ("<live-part" in page) == (live is not None) and 'id="request"' in page


def test_an_operators_list_has_no_keys_to_choose() -> None:
    assert "key" not in InstallationFilter(QueryDict()).fields


# --- Refused requests ----------------------------------------------------------------------------


def test_refused_requests_are_among_the_others_in_the_order_of_time(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    first, second, third = refuse(key, ago(3)), spend(key, ago(2)), refuse(key, ago(1))
    refuse(make_key(make_tenant())[0], ago())
    assert listed(admin, at(tenant)) == [third.id, second.id, first.id]
    text = admin.get(at(tenant)).content.decode()
    assert ">429<" in text and "rate_limit_exceeded</code> Rate limit reached for key" in text
    assert ">200<" in text


def test_pages_of_both_kinds_go_on_where_the_last_one_ended(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    start = ago(60)
    made: list[Any] = []
    for n in range(PAGE + 7):
        moment = start + timedelta(seconds=n // 3)
        made.append(spend(key, moment) if n % 2 else refuse(key, moment))
    made.sort(key=lambda one: one.mark, reverse=True)
    first = admin.get(at(tenant))
    second = admin.get(at(tenant), QueryDict(first.context["next"]))
    seen = [row.event.id for page in (first, second) for row in page.context["rows"]]
    assert seen == [one.id for one in made] and not second.context["next"]


def test_a_request_that_is_in_the_ledger_too_is_listed_once_with_its_error(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    event = spend(key, ago(1), finish_reason="engine_failed")
    refuse(
        key, event.started_at, id=event.id, outcome="failed", status=500, code="engine_failed",
        message="The engine ran out of memory.",
    )  # fmt: skip
    for query in ({}, {"outcome": "failed"}, {"id": event.id}):
        (row,) = admin.get(at(tenant), query).context["rows"]
        assert (row.status, row.code, row.look) == (500, "engine_failed", "bad")
        assert row.message == "The engine ran out of memory." and row.billed == event
    text = admin.get(at(tenant, event.id)).content.decode()
    assert "The engine ran out of memory." in text and "Tokens and cost" in text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"outcome": "refused"}, "limited invalid wrong"),
        ({"outcome": "failed"}, "timeout lost"),
        ({"outcome": "wrong"}, "limited timeout lost invalid wrong"),
        ({"outcome": "answered"}, "fine"),
        ({"model": "support"}, "wrong"),
        ({"ttft": "0.1"}, "lost invalid fine"),
        ({"outcome": "refused", "total": "0.001"}, "invalid"),
    ],
)
def test_filters_of_refused_requests(
    tenant: Tenant, key: ApiKey, admin: Client, query: dict[str, str], found: str
) -> None:
    made: dict[str, Any] = {
        "limited": refuse(key, ago(1)),
        "timeout": refuse(key, ago(2), outcome="failed", status=504, code="generation_timeout"),
        "lost": spend(key, ago(3), finish_reason="engine_lost"),
        "invalid": spend(key, ago(3.5), finish_reason="invalid_request"),
        "fine": spend(key, ago(4)),
        "wrong": refuse(key, ago(5), model="support@9", adapter="support", status=400),
    }
    names = {one.id: name for name, one in made.items()}
    assert [names[id] for id in listed(admin, at(tenant), **query)] == found.split()


@pytest.mark.parametrize("role", ["developer", "viewer"])
def test_others_see_refusals_of_keys_that_they_made(tenant: Tenant, key: ApiKey, role: str) -> None:
    client = client_of(tenant, role)
    own = refuse(make_key(tenant, created_by=user_of(client))[0], ago())
    others = refuse(key, ago())
    assert listed(client, at(tenant)) == [own.id]
    assert client.get(at(tenant, own.id)).status_code == 200
    assert client.get(at(tenant, others.id)).status_code == 404
    assert client_of(tenant, "outsider").get(at(tenant, own.id)).status_code == 404


def test_the_drawer_of_a_refused_request_has_its_exact_error(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    said = "Rate limit reached for key `<ci>`: 60 requests per minute; used 60, requested 1."
    refused = refuse(key, ago(), message=said)
    page = admin.get(at(tenant, f"req_{refused.id}"))
    part = admin.get(at(tenant, refused.id), headers={"HX-Request": "true"})
    assert "<html" in page.content.decode() and "<html" not in part.content.decode()
    for answer in (page, part):
        text = answer.content.decode()
        assert "for key `&lt;ci&gt;`: 60 requests per minute" in text
        assert "<code>rate_limit_exceeded</code>" in text and "<dd>429</dd>" in text
        assert "Requests per minute of the key" in text and key.name in text
    assert admin.get(at(tenant, refused.id, "receipt")).status_code == 404


def test_a_request_whose_key_was_revoked_was_refused_not_cancelled(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    error = ApiKeyRevoked()
    outcome = outcome_of(error, error.code, begun=True)
    fields = {"outcome": outcome, "status": error.http_status, "code": error.code}
    pending = refuse(key, ago(1), **fields)
    assertContains(admin.get(at(tenant, pending.id)), "No engine has reported this request yet")
    event = spend(key, ago(2), finish_reason=error.code)
    refuse(key, event.started_at, id=event.id, **fields)
    only_in_ledger = spend(key, ago(3), finish_reason=error.code)
    ids = [pending.id, event.id, only_in_ledger.id]
    rows = admin.get(at(tenant)).context["rows"]
    assert [(row.event.id, row.outcome, row.status) for row in rows] == [
        (id, outcome, 401) for id in ids
    ]
    assert listed(admin, at(tenant), outcome="refused") == ids[:2]
    assert listed(admin, at(tenant), outcome="cancelled") == []
    assert listed(admin, at(tenant), outcome="failed") == []


@pytest.mark.parametrize("code", ["engine_lost", "generation_timeout"])
def test_a_failed_request_without_an_event_is_not_said_to_be_free(
    tenant: Tenant, key: ApiKey, admin: Client, code: str
) -> None:
    error = BY_CODE[code]
    failed = refuse(key, ago(), outcome="failed", status=error.http_status, code=code)
    text = admin.get(at(tenant, failed.id)).content.decode()
    assert "No engine has reported this request yet" in text and "cost nothing" not in text
    assert "<dt>Failed after</dt>" in text and "Failed requests of this key" in text
    assert f"?outcome=failed&amp;key={key.pk}" in text
    text = admin.get(at(tenant, refuse(key, ago()).id)).content.decode()
    assert "cost nothing" in text and "<dt>Refused after</dt>" in text


@pytest.mark.parametrize(
    ("surface", "source"),
    [
        ("api", "API"),
        ("playground", "Playground"),
        ("batch", "Batch"),
        ("background", "API, in the background"),
    ],
)
def test_the_source_of_a_refused_request(
    tenant: Tenant, key: ApiKey, admin: Client, surface: str, source: str
) -> None:
    refused = refuse(key, ago(), surface=surface)
    assertContains(admin.get(at(tenant, refused.id)), f"<dt>Source</dt><dd>{source}</dd>")


def test_operators_see_refused_requests_of_all(
    tenant: Tenant, key: ApiKey, operator: Client
) -> None:
    own, other = refuse(key, ago(2)), refuse(make_key(make_tenant("other"))[0], ago(1))
    assert listed(operator, "/operate/requests") == [other.id, own.id]
    assert listed(operator, "/operate/requests", tenant="other") == [other.id]
    assert operator.get(at(tenant, own.id)).status_code == 200


@pytest.mark.parametrize(
    ("reason", "status", "look"),
    [
        ("stop", 200, "ok"), ("length", 200, "ok"), ("cancelled", 499, ""),
        ("api_key_revoked", 401, "warn"), ("engine_lost", 502, "bad"),
        ("invalid_request", 400, "warn"), ("odd", 500, "bad"),
    ],
)  # fmt: skip
def test_what_ended_on_an_engine_has_a_status(
    tenant: Tenant, key: ApiKey, admin: Client, reason: str, status: int, look: str
) -> None:
    spend(key, ago(), finish_reason=reason)
    (row,) = admin.get(at(tenant)).context["rows"]
    assert (row.status, row.look, bool(row.message)) == (status, look, status not in (200, 499))


# --- Counts, CSV and saved views ---------------------------------------------------------------


def test_counts_are_of_all_requests_in_the_time(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    other = make_key(tenant)[0]
    spend(key, ago(5)), spend(other, ago(5), adapter="support", model="support")
    met(key, ago(5), requests=40)
    met(key, ago(5), "refused", 7)
    met(other, ago(5), "failed", 2, adapter="support")
    met(make_key(make_tenant())[0], ago(5), requests=9)
    met(key, ago(26 * 60), requests=100)

    def told(**query: Any) -> tuple[int, ...] | None:
        counts = admin.get(at(tenant), query).context["counts"]
        return counts and (counts.requests, counts.failed, counts.refused)

    assert told() == told(period="1h") == (49, 2, 7)
    assert told(period="7d") == (149, 2, 7)
    assert told(key=other.pk) == told(model="support") == (2, 2, 0)
    assert told(outcome="failed") is None and told(q="support") is None
    assert told(reason="stop") is None and told(member=user_of(admin).pk) is None
    client = client_of(tenant, "developer")
    assert client.get(at(tenant)).context["counts"] is None
    own = make_key(tenant, created_by=user_of(client))[0]
    spend(own, ago(5)), met(own, ago(5), requests=3)
    assert client.get(at(tenant)).context["counts"].requests == 3


@pytest.mark.usefixtures("one_moment")
def test_when_the_requests_were(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    """A bar leads to the requests of its time."""
    late, early = spend(key, ago(5)), spend(key, ago(50))
    met(key, ago(5), requests=3)
    met(key, ago(50), "failed", 2), met(key, ago(50), "refused", 1)
    page = admin.get(at(tenant), {"period": "1h"})
    assert listed(admin, at(tenant)) == [late.id, early.id]
    bars = [bar for bar in page.context["counts"].bars if bar.requests]
    assert len(page.context["counts"].bars) == 30
    assert [(bar.requests, bar.failed, bar.refused) for bar in bars] == [(3, 2, 1), (3, 0, 0)]
    assert [name for name, _, _ in bars[0].parts] == ["warn", "bad"]
    assert bars[0].parts[1][1] == "0.0", "the highest bar fills the height"
    for bar, event in zip(bars, (early, late), strict=True):
        assert listed(admin, f"{at(tenant)}?{bar.during}") == [event.id]
        assertContains(page, bar.during.replace("&", "&amp;"))


@pytest.mark.parametrize(
    ("length", "count"),
    [(timedelta(hours=24), 24), (timedelta(days=7), 28), (timedelta(days=90), 13)],
)
def test_a_longer_period_has_longer_bars(
    tenant: Tenant, key: ApiKey, admin: Client, length: timedelta, count: int
) -> None:
    until = datetime(2026, 7, 6, tzinfo=UTC)
    spend(key, until - HOUR)
    query = {"since": f"{until - length:%Y-%m-%dT%H:%M}", "until": f"{until:%Y-%m-%dT%H:%M}"}
    assert len(admin.get(at(tenant), query).context["counts"].bars) in (count, count + 1)


def test_filters_by_engine_member_and_reason(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    ada = client_of(tenant, "developer")
    hers = make_key(tenant, created_by=user_of(ada))[0]
    one = spend(hers, ago(1), engine_id="engine-1", finish_reason="length")
    two = spend(hers, ago(2), engine_id="engine-2")
    spend(key, ago(3), engine_id="engine-2")
    refused = refuse(hers, ago(4), code="context_length_exceeded")

    def found(**query: Any) -> list[str]:
        return listed(admin, at(tenant), **query)

    member = user_of(ada).pk
    assert found(member=member) == [one.id, two.id, refused.id]
    assert found(member=member, engine="engine-2") == [two.id]
    assert found(member=member, engine="engine-2", reason="length") == []
    assert found(reason="length") == [one.id]
    assert found(reason="context_length_exceeded") == [refused.id]
    stranger = user_of(client_of(make_tenant(), "owner")).pk
    assert admin.get(at(tenant), {"member": stranger}).status_code == 422


def test_the_csv_has_what_the_filter_lets_through(
    tenant: Tenant, key: ApiKey, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.views.requests.requests.CSV_PAGE", 2)
    made = [spend(key, ago(n)) for n in range(5)]
    refused = refuse(key, ago(9), message="=cmd")
    spend(make_key(make_tenant())[0], ago())

    def lines(client: Client, **query: Any) -> list[dict[str, str]]:
        answer: Any = client.get(at(tenant, "csv"), query)
        assert answer.status_code == 200
        text = b"".join(async_to_sync(collected)(answer.streaming_content)).decode()
        return list(csv.DictReader(text.splitlines()))

    found = lines(admin)
    assert [row["id"] for row in found] == [f"req_{one.pk}" for one in [*made, refused]]
    assert (found[0]["key"], found[0]["status"], found[0]["cost"]) == (
        key.name,
        "200",
        "0.000016200000",
    )
    assert found[-1]["message"] == "'=cmd" and found[-1]["cost"] == ""
    assert [row["outcome"] for row in lines(admin, outcome="wrong")] == ["refused"]
    assert lines(client_of(tenant, "developer")) == []
    assert admin.get(at(tenant, "csv"), {"key": "x"}).status_code == 422
    assert client_of(tenant, "outsider").get(at(tenant, "csv")).status_code == 404


async def collected(parts: Any) -> list[bytes]:
    return [part async for part in parts]


def test_a_view_is_a_filter_under_a_name_and_ones_own(tenant: Tenant) -> None:
    owner, other = client_of(tenant, "owner"), client_of(tenant, "admin")
    query = "?outcome=wrong&period=7d&before=1-x&odd=1&model="
    saved = owner.post(at(tenant, "views"), {"name": "Trouble", "query": query})
    assert saved["Location"] == f"{at(tenant)}?outcome=wrong&period=7d"
    owner.post(at(tenant, "views"), {"name": "Trouble", "query": "outcome=failed"})
    (view,) = SavedView.objects.all()
    assert (view.query, view.member.user) == ("outcome=failed", user_of(owner))
    page = owner.get(at(tenant), {"outcome": "failed"})
    assert page.context["views"] == [(view, True)]
    assert other.get(at(tenant)).context["views"] == []
    for name, odd in (("", "outcome=failed"), ("x", "outcome=odd"), ("x", "key=99999999")):
        owner.post(at(tenant, "views"), {"name": name, "query": odd})
    assert SavedView.objects.count() == 1
    assert other.post(at(tenant, "views", f"{view.pk}/delete")).status_code == 404
    assert owner.post(at(tenant, "views", f"{view.pk}/delete")).status_code == 302
    assert not SavedView.objects.exists()


def test_views_are_limited_and_members_alone_have_some(tenant: Tenant, operator: Client) -> None:
    assert operator.post(at(tenant, "views"), {"name": "x"}).status_code == 403
    member = user_of(client_of(tenant, "owner")).memberships.get(tenant=tenant)
    for number in range(SavedView.most):
        SavedView.objects.keep(member, f"view {number}", query="")
    with pytest.raises(TooManySaved):
        SavedView.objects.keep(member, "one more", query="")
    SavedView.objects.keep(member, "view 0", query="outcome=cut")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [("failed", "engine_lost"), ("refused", "invalid_request"), ("wrong", "invalid_request")],
)
def test_failed_requests_are_read_from_an_index_of_their_own(
    tenant: Tenant, key: ApiKey, outcome: str, reason: str
) -> None:
    lost = spend(key, ago(30), finish_reason=reason)
    for minutes in range(10):
        spend(key, ago(minutes))
    window = (ago(60), None)
    for where in (Where.of_tenant(tenant), Where.of_tenant(None)):
        # Without the index a search would end after four that succeeded.
        found = where.page(Filter(outcome=outcome), window, None, size=PAGE, most=3)
        assert [one.id for one in found.events] == [lost.id] and found.searched_to is None
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        events = Filter(outcome=outcome).events(where.events).between(*window).newest()
        assert ",".join(COMMON) not in events.explain()  # its index knows


# --- One request ---------------------------------------------------------------------------------


def made_of(queue: float, load: float, ttft: float | None, total: float, **more: Any) -> UsageEvent:
    times = {"queue_s": queue, "load_s": load, "ttft_s": ttft, "total_s": total}
    return UsageEvent(**({"adapter": "support", "completion_tokens": 11} | times | more))


def told(*tried: UsageEvent | SupersededAttempt, adapter: bool = False) -> list[str]:
    """Each attempt's phases, with their ends."""
    shown = Timeline.of(tried, adapter=adapter).attempts
    return [", ".join(f"{one.name} {one.until:g}" for one in each.phases) for each in shown]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (made_of(1, 2, 4, 8), "Queued 1, Load adapter 3, Prefill 4, Decode 8"),
        (made_of(1, 0, 4, 8, adapter=""), "Queued 1, Prefill 4, Decode 8"),
        (made_of(1, 1, None, 8), "Queued 1, Load adapter 2, No token generated 8"),
        (made_of(1, 1, 8, 8), "Queued 1, Load adapter 2, Prefill and decode 8"),
        (made_of(0, 0, None, 0), ""),
        (made_of(1, 0, 4, 8, adapter="", given_s=2), "Held 2, Queued 3, Prefill 6, Decode 10"),
    ],
)
def test_phases(event: UsageEvent, expected: str) -> None:
    assert told(event, adapter=bool(event.adapter)) == [expected]


times = st.floats(0, 1e5)


@given(times, times, times, times | st.none(), st.floats(0.001, 1e5))
def test_phases_fill_the_whole_time_whatever_was_measured(
    given_s: float, queue: float, load: float, ttft: float | None, total: float
) -> None:
    timeline = Timeline.of([made_of(queue, load, ttft, total, given_s=given_s)], adapter=True)
    found = timeline.attempts[0].phases
    assert all(one.width >= 0 for one in found)
    assert sum(one.width for one in found) == pytest.approx(SCALE, abs=0.05)
    assert timeline.total_s == given_s + total


def lower(attempt: int, engine: str, total: float, **more: Any) -> SupersededAttempt:
    known = {"inherited_tokens": 0, "completion_tokens": 4, "finish_reason": "moved"}
    return SupersededAttempt(attempt=attempt, engine_id=engine, total_s=total, **(known | more))


def test_an_engine_that_goes_on_counts_from_the_requests_beginning() -> None:
    first = lower(1, "rack-1", 3, queue_s=1, ttft_s=2)
    event = made_of(1, 0, 2, 9, given_s=4, inherited_tokens=4, attempt=2)
    assert told(first, event) == [
        "Queued 1, Prefill 2, Decode 3",
        "Moving 4, Queued 5, Prefill and decode 9",
    ]
    shown = Timeline.of([first, event], adapter=False)
    assert [(one.begun_s, one.ttft_s, one.ended_s) for one in shown.attempts] == [
        (0, 2, 3),
        (4, None, 9),
    ]


def test_an_engine_that_died_had_it_until_another_one_did() -> None:
    event = made_of(0, 0, 1, 2, given_s=5, attempt=2)
    found = told(lower(1, "rack-1", 0), event)
    assert found == ["Until the engine was lost 5", "Queued 5, Prefill 6, Decode 7"]
    assert Timeline.of([event], adapter=False).unreported
    assert told(event) == ["Moving 5, Queued 5, Prefill 6, Decode 7"]


def test_what_another_gateway_took_over_went_on_at_its_engine() -> None:
    first = lower(1, "rack-1", 3, queue_s=1, ttft_s=2)
    event = made_of(1, 0, 2, 9, given_s=3, inherited_tokens=4, attempt=1001, engine_id="rack-1")
    assert told(first, event)[1] == "Decode, at another gateway 9"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "\u2013"), (0, "0.00 ms"), (0.00126, "1.26 ms"), (0.1824, "182 ms"),
        (0.9996, "1.00 s"), (3.514, "3.51 s"), (42.04, "42.0 s"), (125.4, "2 min 05 s"),
        (179.7, "3 min 00 s"),
    ],
)  # fmt: skip
def test_durations_in_words(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def test_tokens_per_second_are_of_what_follows_the_first() -> None:
    assert rate(made_of(0, 0, 1, 6)) == 2
    assert rate(made_of(0, 0, None, 6)) is None
    assert rate(made_of(0, 0, 6, 6)) is None
    assert rate(made_of(0, 0, 1, 6, completion_tokens=0)) is None


@pytest.mark.parametrize(
    "code", sorted({*BY_CODE, *(r for some in REASONS.values() for r in some)})
)
def test_every_reason_is_told_in_words(code: str) -> None:
    assert cause(code).endswith(".")
    assert f"`{code}`" not in cause(code)


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_gateways_and_the_ledger_agree_on_what_ended_on_an_engine(code: str) -> None:
    assert UsageEvent(finish_reason=code).outcome == outcome_of(BY_CODE[code](), code, begun=True)


def test_a_reason_that_is_unknown_is_a_failure_and_named() -> None:
    event = UsageEvent(finish_reason="odd")
    assert (event.outcome, cause(event.finish_reason)) == (Outcome.FAILED, "It ended with `odd`.")


def test_charges_add_up_to_the_cost(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    event = spend(key, ago(), Usage(123, 45, 67, 0, 0.1, 0, 0.3, 0.9))
    page = admin.get(at(tenant, event.id))
    charges = page.context["charges"]
    assert sum(one.tokens * one.price for one in charges) == event.cost
    assert page.context["cost"] == exact_money(event.cost) == "$0.000055275"
    assert [one.cost for one in charges] == ["$0.0000117", "$0.000003375", "$0.0000402"]


def test_the_page_says_which_tokens_are_an_estimate(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    for guessed in (True, False):
        text = admin.get(at(tenant, spend(key, ago(), is_estimated=guessed).id)).content.decode()
        assert ("(estimated)" in text) is ("they are an estimate" in text) is guessed


def test_the_drawer_is_the_page_without_its_shell(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    event = spend(key, ago(), finish_reason="api_key_revoked")
    page = admin.get(at(tenant, f"req_{event.id}"))
    part = admin.get(at(tenant, event.id), headers={"HX-Request": "true"})
    assert page["Vary"] == part["Vary"] and "HX-Request" in part["Vary"]
    assert "<html" in page.content.decode() and "<html" not in part.content.decode()
    for answer in (page, part):
        text = answer.content.decode()
        assert "The API key was revoked" in text and f"req_{event.id}" in text


def test_the_drawer_tells_of_every_attempt(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    event = spend(
        key, ago(), attempt=2, inherited_tokens=5, regenerated_tokens=2, given_s=0.4,
        trace_id="ab" * 16,
    )  # fmt: skip
    counts = dict.fromkeys(("prompt_tokens", "cached_tokens", "reasoning_tokens"), 0)
    SupersededAttempt.objects.create(
        request_id=event.id, started_at=event.started_at, attempt=1, engine_id="rack-1",
        journal="j", completion_tokens=96, inherited_tokens=0, finish_reason="engine_lost",
        ttft_s=0.15, total_s=0.3, **counts,
    )  # fmt: skip
    page = admin.get(at(tenant, event.id))
    shown = page.context["timeline"].attempts
    assert [one.tried.engine_id for one in shown] == ["rack-1", "e1"]
    text = page.content.decode()
    assert "TTFT 150 ms" in text and "Started after 400 ms" in text and "ab" * 16 in text
    assert "96 out" in text and "continued after 5 tokens" in text and "2 tokens were" in text
    (row,) = admin.get(at(tenant)).context["rows"]
    assert row.attempts == 2


@pytest.mark.parametrize(
    ("scope", "where"), [("key", "limits/keys/{pk}"), ("tenant", "limits"), ("adapter", "limits")]
)
def test_a_refusal_leads_to_the_limit_that_it_met(
    tenant: Tenant, key: ApiKey, admin: Client, scope: str, where: str
) -> None:
    refused = refuse(key, ago(), limit_scope=scope, trace_id="cd" * 16)
    page = admin.get(at(tenant, refused.id))
    assert "cd" * 16 in page.content.decode()
    assert page.context["limits_url"] == f"/t/{tenant.slug}/{where.format(pk=key.pk)}"
    other = refuse(key, ago(), limit_scope="", limit_kind="", code="model_not_found")
    assert "limits_url" not in admin.get(at(tenant, other.id)).context


def test_a_request_opens_in_the_playground_with_its_version(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    version = make_version(make_adapter(tenant, name="support"))
    tried = spend(key, ago(), adapter="support", model="support", version=version)
    gone = spend(key, ago(), adapter="sales", model="sales@2")
    for event, model in ((tried, f"support%40{version.number}"), (gone, "sales%402")):
        url = admin.get(at(tenant, event.id)).context["playground"]
        assert url == f"/t/{tenant.slug}/playground?model={model}"


def test_the_receipt_is_signed_and_to_be_kept(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    event = spend(key, ago())
    answer = admin.get(at(tenant, event.id, "receipt"))
    assert answer["Content-Disposition"] == f'attachment; filename="receipt-req_{event.id}.json"'
    assert verify(answer.json(), [signer().public_key]) == describe(UsageEvent.objects.get())


@pytest.mark.parametrize("id", ["nothing", "a b", "%00", "x" * 200])
def test_what_is_no_request_is_not_found(tenant: Tenant, admin: Client, id: str) -> None:
    assert admin.get(at(tenant, id)).status_code == 404
