"""Limits: read by members, set by admins up to the operator's limits."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inference.link.accounts import Usage
from tenants.models import LimitScope, LimitSet, Tenant
from tenants.utc import month_start
from tests.fleet.fake import FakeGateways
from tests.frontend.clients import address, client_of
from tests.limits.asking import COUNTED
from tests.tenants.making import make_adapter, make_key, make_tenant, make_tuning_job
from tests.tenants.refusing import met, refuse
from tests.tenants.spending import spend

pytestmark = pytest.mark.usefixtures("one_moment")

OPERATOR, TENANT = LimitSet.Author.OPERATOR, LimitSet.Author.TENANT


def own(**figures: Any) -> dict[str, Any]:
    return {"author": "tenant"} | {f"tenant-{name}": value for name, value in figures.items()}


def line(page: Any, label: str) -> Any:
    return next(line for line in page.context["lines"] if line.label == label)


@pytest.mark.parametrize(
    ("role", "sees", "sets", "operates"),
    [("owner", 200, 302, 403), ("admin", 200, 302, 403), ("developer", 200, 403, 403),
     ("viewer", 200, 403, 403), ("operator", 200, 302, 302), ("outsider", 404, 404, 404)],
)  # fmt: skip
def test_who_sees_and_sets_them(
    tenant: Tenant, role: str, sees: int, sets: int, operates: int
) -> None:
    key, _ = make_key(tenant)
    make_adapter(tenant)
    client = client_of(tenant, role)
    for page in ("limits", f"limits/keys/{key.pk}", "limits/adapters/support"):
        where = address(tenant, page)
        assert client.get(where).status_code == sees
        assert client.post(where, own(requests_per_minute="5")).status_code == sets
        ceiling = {"author": "operator", "operator-requests_per_minute": "9"}
        assert client.post(where, ceiling).status_code == operates
        assert client.post(where, {"author": "nobody"}).status_code in (403, 404)
    set_by = set(LimitSet.objects.values_list("author", flat=True))
    assert set_by == {
        author for author, status in (("tenant", sets), ("operator", operates)) if status == 302
    }


def test_what_is_in_force_is_the_lesser_of_both(tenant: Tenant, admin: Client) -> None:
    LimitScope().store(OPERATOR, {"tokens_per_day": 7000})
    LimitScope(tenant).store(OPERATOR, {"requests_per_minute": 100})
    admin.post(address(tenant, "limits"), own(requests_per_minute="60"))
    page = admin.get(address(tenant, "limits"))
    of_requests = line(page, "Requests per minute")
    assert (of_requests.in_force, of_requests.own, of_requests.ceiling) == ("60", "60", "100")
    of_tokens = line(page, "Tokens per day")
    assert (of_tokens.in_force, of_tokens.own, of_tokens.ceiling) == (
        "7,000", "Not set", "7,000"
    )  # fmt: skip
    assert (of_requests.ceiling_by, of_tokens.ceiling_by) == ("", "installation default")
    key, _ = make_key(tenant)
    of_key = admin.get(address(tenant, f"limits/keys/{key.pk}"))
    assert line(of_key, "Tokens per day").ceiling_by == "of the tenant"
    assert line(of_key, "Cost per day").ceiling_by == ""


def test_trained_tokens_are_limited_for_a_whole_tenant_alone(tenant: Tenant) -> None:
    operator = client_of(tenant, "operator")
    default = {"operator-trained_tokens_per_day": "9000"}
    assert operator.post("/operate/limits", default).status_code == 302
    ceiling = {"author": "operator", "operator-trained_tokens_per_day": "5000"}
    assert operator.post(address(tenant, "limits"), ceiling).status_code == 302
    ended: dict[str, Any] = {"status": "succeeded", "finished_at": timezone.now()}
    make_tuning_job(tenant, trained_tokens=1200, **ended)
    admin = client_of(tenant, "admin")
    shown = line(admin.get(address(tenant, "limits")), "Trained tokens per day")
    assert (shown.in_force, shown.ceiling, shown.used_text) == ("5,000", "5,000", "1,200")
    assert "9,000" in operator.get("/operate/limits").text
    assert "5,000" in operator.get(f"/operate/tenants/{tenant.slug}").text
    key, _ = make_key(tenant)
    make_adapter(tenant)
    for page in (f"limits/keys/{key.pk}", "limits/adapters/support"):
        where = address(tenant, page)
        assert "trained_tokens" not in admin.get(where).text
        admin.post(where, own(trained_tokens_per_day="5", requests_per_minute="7"))
        assert not LimitSet.objects.filter(trained_tokens_per_day=5).exists()


def test_above_the_ceiling_names_both(tenant: Tenant, admin: Client) -> None:
    LimitScope(tenant).store(OPERATOR, {"requests_per_minute": 100, "cost_per_day": 12_500_000})
    body = own(requests_per_minute="101", cost_per_day="12.500001")
    answer = admin.post(address(tenant, "limits"), body)
    text = answer.content.decode()
    assert answer.status_code == 422
    assert "101 is above the ceiling of 100." in text
    assert "$12.500001 is above the ceiling of $12.50." in text
    assert 'value="12.500001"' in text and '<dialog id="edit-tenant"' in text
    assert not LimitSet.objects.filter(author="tenant").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requests_per_minute", "-1"),
        ("requests_per_minute", "1.5"),
        ("tokens_per_month", "1000000000001"),
        ("cost_per_day", "0.0000001"),
        ("cost_per_month", "1000000.000001"),
        ("cost_per_month", "NaN"),
        ("concurrent_streams", "many"),
    ],
)
def test_nonsense_is_refused(tenant: Tenant, admin: Client, name: str, value: str) -> None:
    answer = admin.post(address(tenant, "limits"), own(**{name: value}))
    assert answer.status_code == 422 and not LimitSet.objects.exists()


def test_money_is_entered_in_units_and_stored_in_millionths(tenant: Tenant, admin: Client) -> None:
    admin.post(address(tenant, "limits"), own(cost_per_day="12.5", cost_per_month="1000000"))
    stored: Any = LimitSet.objects.get()
    assert (stored.cost_per_day, stored.cost_per_month) == (12_500_000, 10**12)
    page = admin.get(address(tenant, "limits"))
    assert line(page, "Cost per day").in_force == "$12.50"
    form = page.context["own_form"]
    assert (form["cost_per_day"].value(), form["cost_per_month"].value()) == (
        "12.50", "1000000.00"
    )  # fmt: skip


def test_what_is_left_empty_is_no_limit_any_more(tenant: Tenant, admin: Client) -> None:
    admin.post(address(tenant, "limits"), own(requests_per_minute="5", tokens_per_day="0"))
    admin.post(address(tenant, "limits"), own(tokens_per_day="0"))
    stored: Any = LimitSet.objects.get()
    assert (stored.requests_per_minute, stored.tokens_per_day) == (None, 0)


def test_a_key_stays_below_its_tenants_ceiling(tenant: Tenant, admin: Client) -> None:
    key, _ = make_key(tenant)
    LimitScope(tenant).store(OPERATOR, {"requests_per_minute": 10})
    where = address(tenant, f"limits/keys/{key.pk}")
    assert admin.post(where, own(requests_per_minute="11")).status_code == 422
    assert admin.post(where, own(requests_per_minute="10"))["Location"] == where
    assert LimitSet.objects.get(author="tenant").key == key


def test_a_revoked_keys_limits_are_only_read(tenant: Tenant, admin: Client) -> None:
    key, _ = make_key(tenant)
    key.revoke()
    where = address(tenant, f"limits/keys/{key.pk}")
    page = admin.get(where)
    assert page.status_code == 200 and page.context["own_form"] is None
    assert admin.post(where, own(requests_per_minute="1")).status_code == 403


def test_other_tenants_keys_and_adapters_are_not_there(tenant: Tenant, admin: Client) -> None:
    other = make_tenant()
    key, _ = make_key(other)
    make_adapter(other, "theirs")
    assert admin.get(address(tenant, f"limits/keys/{key.pk}")).status_code == 404
    assert admin.get(address(tenant, "limits/adapters/theirs")).status_code == 404
    assert "theirs" not in admin.get(address(tenant, "limits")).content.decode()


def test_adapters_with_limits_are_listed_first_and_found(
    tenant: Tenant, admin: Client, django_assert_max_num_queries: Any
) -> None:
    for name in ("alpha", "omega"):
        make_adapter(tenant, name)
    LimitScope(tenant, adapter=make_adapter(tenant, "mid")).store(TENANT, {"tokens_per_day": 1})
    with django_assert_max_num_queries(12):
        page = admin.get(address(tenant, "limits"))
    assert [one.name for one in page.context["adapters"]] == ["mid", "alpha", "omega"]
    found = admin.get(address(tenant, "limits"), {"q": "MEG"})
    assert [one.name for one in found.context["adapters"]] == ["omega"]
    none = admin.get(address(tenant, "limits"), {"q": "\0x"}).content.decode()
    assert "No key or adapter matches" in none


def test_budgets_are_shown_as_the_ledger_has_them(tenant: Tenant, admin: Client) -> None:
    key, _ = make_key(tenant)
    make_adapter(tenant)
    LimitScope(tenant).store(OPERATOR, {"tokens_per_day": 1000})
    spend(key, timezone.now())
    spend(key, timezone.now(), adapter="support")
    page = admin.get(address(tenant, "limits"))
    assert (line(page, "Tokens per day").used, line(page, "Tokens per month").used) == (214, 214)
    assert line(page, "Cost per day").used == 33  # 2 x 16.2 micro-units, rounded up
    assert '<meter min="0" max="1000" low="800" high="950"' in page.content.decode()
    adapter = admin.get(address(tenant, "limits/adapters/support"))
    assert line(adapter, "Tokens per day").used == 107
    fresh, _ = make_key(tenant)
    unused = admin.get(address(tenant, f"limits/keys/{fresh.pk}"))
    assert line(unused, "Cost per month").used == 0
    rotated, _ = key.rotate(timedelta(), None)
    page = admin.get(address(tenant, f"limits/keys/{rotated.pk}"))
    assert line(page, "Tokens per month").used == 214, "and those of the key that it was"


def test_the_minute_is_shown_as_the_limiter_has_it(
    tenant: Tenant, admin: Client, gateways: FakeGateways
) -> None:
    LimitScope(tenant).store(OPERATOR, {"requests_per_minute": 10})
    assert line(admin.get(address(tenant, "limits")), "Requests per minute").used is None
    gateways.counted = 4
    assert line(admin.get(address(tenant, "limits")), "Requests per minute").used == 4
    every = dict.fromkeys(COUNTED, 10)
    LimitScope(tenant).store(OPERATOR, every)
    page = admin.get(address(tenant, "limits"))
    assert page.content.decode().count('value="4" aria-label=') == len(COUNTED) == 5
    assert 'aria-valuetext="4 of 10"' in page.content.decode()
    gateways.counted = None
    page = admin.get(address(tenant, "limits"))
    assert page.status_code == 200 and line(page, "Requests per minute").used is None


def test_a_limit_that_refuses_leads_to_what_it_refused(tenant: Tenant, admin: Client) -> None:
    key, other = make_key(tenant)[0], make_key(tenant)[0]
    now = timezone.now()
    for one, scope, count in ((key, "key", 3), (key, "tenant", 5), (other, "key", 7)):
        limit: Any = {"limit_kind": "requests_per_minute", "limit_scope": scope}
        met(one, now, "refused", count, code="rate_limit_exceeded", **limit)
    refused = refuse(key, now, limit_scope="key")
    refuse(other, now)
    for page, count in (("limits", 5), (f"limits/keys/{key.pk}", 3)):
        found = line(admin.get(address(tenant, page)), "Requests per minute")
        assert found.refused == count
        assert (
            found.refusals.replace("&", "&amp;")
            in admin.get(address(tenant, page)).content.decode()
        )
    listed = admin.get(found.refusals).context["rows"]
    assert [row.event.id for row in listed] == [refused.id]
    assert line(admin.get(address(tenant, "limits")), "Tokens per day").refused == 0


def test_what_a_key_spent_this_month_leads_to_the_requests_of_this_month(
    tenant: Tenant, admin: Client
) -> None:
    key, _ = make_key(tenant)
    start = month_start(timezone.now())
    spend(key, start - timedelta(seconds=1), Usage(10_000_000, 0, 0))
    first = spend(key, start, Usage(10_000_000, 0, 0))
    page = admin.get(address(tenant, "keys")).content.decode()
    (where,) = re.findall(r'href="([^"]+)">\$1\.50</a>', page)
    listed = admin.get(html.unescape(where)).context["rows"]
    assert [row.event.id for row in listed] == [first.id]


def test_limits_of_a_key_are_set_where_keys_are_listed(tenant: Tenant, admin: Client) -> None:
    key, _ = make_key(tenant)
    where = address(tenant, f"limits/keys/{key.pk}")
    part = admin.get(where, headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part and 'id="loaded_tenant-requests_per_minute"' in part
    body = own(requests_per_minute="60", cost_per_month="5") | {"from": "keys"}
    assert admin.post(where, body)["Location"] == address(tenant, "keys")
    spend(key, timezone.now(), Usage(10_000_000, 0, 0))
    (row,) = admin.get(address(tenant, "keys")).context["keys"]
    assert row.limits == ["60 requests per minute", "$5.00 per month"]
    assert (row.budget, row.spent, row.refused) == (5_000_000, 1_500_000, 0)
    theirs = client_of(tenant, "developer").get(address(tenant, "keys"))
    (row,) = theirs.context["keys"]
    assert (row.cost, row.may_edit) == (None, False) and "$1.50" not in theirs.content.decode()
