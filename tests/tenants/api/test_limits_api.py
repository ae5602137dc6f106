"""Limits, lanes and pins over the management API, for callers with the permission."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from tenants.limits.kinds import KINDS, TENANT_KINDS, TRAINED
from tenants.models import Adapter, ApiKey, LimitScope, LimitSet, Tenant
from tests.tenants.callers import Api, person, with_key
from tests.tenants.making import make_adapter, make_key, make_tenant, make_user

pytestmark = pytest.mark.django_db
NONE = dict.fromkeys(KINDS)
NONE_OF_TENANT = dict.fromkeys(TENANT_KINDS)


@pytest.fixture
def admin(tenant: Tenant) -> Api:
    return person(tenant, "admin")[0]


@pytest.fixture
def operator(tenant: Tenant) -> Api:
    return Api(make_user("op", is_staff=True), "acme")


@pytest.fixture(params=["tenant", "key", "adapter"])
def path(request: Any, adapter: Adapter) -> str:
    """The path of a scope's limits."""
    return {
        "tenant": "limits",
        "key": f"keys/{make_key(adapter.tenant)[0].pk}/limits",
        "adapter": "adapters/support/limits",
    }[request.param]


def figures(response: Any, part: str) -> dict[str, int]:
    """The limits that are set in one part of the response."""
    assert response.status_code == 200, response.content
    body = response.json()
    assert list(body) == ["operator", "own", "ceiling", "in_force"]
    assert all(list(part) in (list(KINDS), list(TENANT_KINDS)) for part in body.values())
    return {name: limit for name, limit in body[part].items() if limit is not None}


def refusals(response: Any) -> dict[str, str]:
    assert response.status_code == 400, response.content
    return {error["field"]: error["message"] for error in response.json()["errors"]}


# --- One scope -----------------------------------------------------------------------------------


def test_nothing_is_limited_at_first(admin: Api, path: str) -> None:
    none = NONE_OF_TENANT if path == "limits" else NONE
    parts = ["operator", "own", "ceiling", "in_force"]
    assert admin("GET", path).json() == dict.fromkeys(parts, none)


def test_the_lesser_of_operator_and_tenant_is_in_force(
    admin: Api, operator: Api, path: str
) -> None:
    admin("PUT", path, {"own": {"requests_per_minute": 100, "tokens_per_day": 5}})
    ceiling = {"requests_per_minute": 50, "concurrent_streams": 3}
    operator("PUT", path, {"operator": ceiling})
    answer = admin("GET", path)
    assert figures(answer, "operator") == figures(answer, "ceiling") == ceiling
    assert figures(answer, "own") == {"requests_per_minute": 100, "tokens_per_day": 5}
    assert figures(answer, "in_force") == {
        "requests_per_minute": 50, "tokens_per_day": 5, "concurrent_streams": 3,
    }  # fmt: skip


def test_a_tenants_own_limit_is_not_above_the_ceiling(admin: Api, operator: Api, path: str) -> None:
    operator("PUT", path, {"operator": {"tokens_per_minute": 100, "cost_per_day": 0}})
    body = {"own": {"tokens_per_minute": 101, "cost_per_day": 1, "cost_per_month": 10**12}}
    answer = admin("PUT", path, body)
    assert refusals(answer) == {
        "own.tokens_per_minute": "101 is above the ceiling of 100.",
        "own.cost_per_day": "1 is above the ceiling of 0.",
    }
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["detail"] == "own.tokens_per_minute: 101 is above the ceiling of 100."
    assert figures(admin("GET", path), "own") == {}
    body = {"own": {"tokens_per_minute": 100, "cost_per_day": 0}}
    assert figures(admin("PUT", path, body), "in_force") == body["own"]


def test_put_replaces_and_patch_changes(admin: Api, path: str) -> None:
    admin("PUT", path, {"own": {"requests_per_minute": 1, "tokens_per_day": 2}})
    answer = admin("PATCH", path, {"own": {"tokens_per_day": 3, "concurrent_streams": 4}})
    assert figures(answer, "own") == {
        "requests_per_minute": 1, "tokens_per_day": 3, "concurrent_streams": 4,
    }  # fmt: skip
    answer = admin("PATCH", path, {"own": {"requests_per_minute": None}})
    assert figures(answer, "own") == {"tokens_per_day": 3, "concurrent_streams": 4}
    answer = admin("PUT", path, {"own": {"concurrent_streams": 5}})
    assert figures(answer, "own") == {"concurrent_streams": 5}
    assert figures(admin("PUT", path, {"own": {}}), "own") == {}


def test_authors_do_not_touch_each_others_limits(admin: Api, operator: Api, path: str) -> None:
    admin("PUT", path, {"own": {"tokens_per_day": 5}})
    operator("PUT", path, {"operator": {"tokens_per_day": 9}})
    assert figures(operator("PUT", path, {"operator": {}}), "own") == {"tokens_per_day": 5}
    answer = admin("PUT", path, {"operator": {"tokens_per_day": 99}})
    assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_permissions")
    both = {"own": {"tokens_per_day": 8}, "operator": {"tokens_per_day": 9}}
    assert admin("PATCH", path, both).status_code == 403
    assert figures(admin("GET", path), "own") == {"tokens_per_day": 5}
    assert figures(operator("PATCH", path, both), "in_force") == {"tokens_per_day": 8}
    # Both are set or neither is: an own limit above the new ceiling refuses both.
    both["own"] = {"tokens_per_day": 10}
    both["operator"] = {"tokens_per_day": 7}
    assert refusals(operator("PATCH", path, both)).keys() == {"own.tokens_per_day"}
    assert figures(admin("GET", path), "ceiling") == {"tokens_per_day": 9}


def test_a_ceiling_that_sinks_leaves_the_tenants_own_alone(
    admin: Api, operator: Api, path: str
) -> None:
    admin("PUT", path, {"own": {"tokens_per_day": 50}})
    operator("PUT", path, {"operator": {"tokens_per_day": 10}})
    answer = admin("PATCH", path, {"own": {"requests_per_minute": 1}})
    assert figures(answer, "own") == {"tokens_per_day": 50, "requests_per_minute": 1}
    assert figures(answer, "in_force") == {"tokens_per_day": 10, "requests_per_minute": 1}


@pytest.mark.parametrize("value", [-1, 10**12 + 1, 1.5, "many", True, [], {}, 10**30])
def test_a_limit_is_a_whole_number_in_bounds(admin: Api, path: str, value: Any) -> None:
    answer = admin("PUT", path, {"own": {"requests_per_minute": value}})
    assert refusals(answer).keys() == {"own.requests_per_minute"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"own": {"requests_per_hour": 1}}, "own.requests_per_hour"),
        ({"in_force": {"requests_per_minute": 1}}, "in_force"),
        ({"ceiling": {}}, "ceiling"),
        ({"requests_per_minute": 1}, "requests_per_minute"),
        ({"own": None}, "own"),
        ({"own": [1]}, "own"),
        ([], ""),
    ],
)
def test_a_body_that_is_no_set_of_limits(admin: Api, path: str, body: Any, field: str) -> None:
    assert refusals(admin("PATCH", path, body)).keys() == {field}
    assert not LimitSet.objects.exists()


# --- Scopes beside each other --------------------------------------------------------------------


@pytest.mark.parametrize("part", ["key", "adapter"])
def test_a_part_is_not_given_more_than_the_whole(
    admin: Api, operator: Api, adapter: Adapter, part: str
) -> None:
    key = make_key(adapter.tenant)[0]
    path = f"keys/{key.pk}/limits" if part == "key" else "adapters/support/limits"
    operator("PUT", "limits/default", {"requests_per_minute": 7})
    operator("PUT", "limits", {"operator": {"tokens_per_day": 100, "cost_per_day": 100}})
    operator("PUT", path, {"operator": {"tokens_per_day": 200, "cost_per_day": 50}})
    answer = admin("GET", path)
    assert figures(answer, "ceiling") == {
        "requests_per_minute": 7, "tokens_per_day": 100, "cost_per_day": 50,
    }  # fmt: skip
    assert figures(answer, "in_force") == {"tokens_per_day": 200, "cost_per_day": 50}
    over = {"requests_per_minute": 8, "tokens_per_day": 101, "cost_per_day": 51}
    assert refusals(admin("PUT", path, {"own": over})) == {
        "own.requests_per_minute": "8 is above the ceiling of 7.",
        "own.tokens_per_day": "101 is above the ceiling of 100.",
        "own.cost_per_day": "51 is above the ceiling of 50.",
    }
    # The tenant's own limit is no ceiling for a key: it applies to the sum of all keys.
    admin("PUT", "limits", {"own": {"tokens_per_day": 10}})
    assert admin("PUT", path, {"own": {"tokens_per_day": 90}}).status_code == 200


def test_scopes_are_kept_apart(admin: Api, adapter: Adapter) -> None:
    tenant = adapter.tenant
    one, other = make_key(tenant)[0], make_key(tenant)[0]
    make_adapter(tenant, "second")
    paths = [
        "limits", f"keys/{one.pk}/limits", f"keys/{other.pk}/limits",
        "adapters/support/limits", "adapters/second/limits",
    ]  # fmt: skip
    for number, path in enumerate(paths):
        admin("PUT", path, {"own": {"tokens_per_day": number}})
    for number, path in enumerate(paths):
        assert figures(admin("GET", path), "in_force") == {"tokens_per_day": number}
    foreign = person(make_tenant("other"), "owner")[0]
    assert figures(foreign("GET", "limits"), "in_force") == {}


def test_a_revoked_keys_limits_are_history(admin: Api, tenant: Tenant) -> None:
    key = make_key(tenant)[0]
    path = f"keys/{key.pk}/limits"
    admin("PUT", path, {"own": {"tokens_per_day": 1}})
    key.revoke()
    answer = admin("PUT", path, {"own": {}})
    assert (answer.status_code, answer.json()["code"]) == (409, "key_revoked")
    assert figures(admin("GET", path), "own") == {"tokens_per_day": 1}


def test_limits_go_with_what_they_limit(admin: Api, adapter: Adapter) -> None:
    admin("PUT", "adapters/support/limits", {"own": {"tokens_per_day": 1}})
    assert admin("DELETE", "adapters/support").status_code == 204
    assert not LimitSet.objects.exists()


def test_trained_tokens_are_limited_for_a_whole_tenant_alone(
    admin: Api, operator: Api, adapter: Adapter
) -> None:
    assert operator("PATCH", "limits/default", {TRAINED.name: 900}).status_code == 200
    assert operator("PUT", "limits", {"operator": {TRAINED.name: 500}}).status_code == 200
    refused = admin("PUT", "limits", {"own": {TRAINED.name: 501}})
    assert refusals(refused) == {f"own.{TRAINED.name}": "501 is above the ceiling of 500."}
    answer = admin("PUT", "limits", {"own": {TRAINED.name: 400}})
    assert figures(answer, "in_force") == {TRAINED.name: 400}
    key = make_key(adapter.tenant)[0]
    for path in (f"keys/{key.pk}/limits", "adapters/support/limits"):
        refused = admin("PUT", path, {"own": {TRAINED.name: 5}})
        assert refusals(refused) == {f"own.{TRAINED.name}": "Unknown field."}
        assert TRAINED.name not in admin("GET", path).json()["in_force"]
        assert admin("PUT", path, {"own": {"tokens_per_day": 5}}).status_code == 200


# --- The platform's default ----------------------------------------------------------------------


def test_the_default_holds_where_the_operator_set_nothing_else(admin: Api, operator: Api) -> None:
    default = {"tokens_per_day": 100, "requests_per_minute": 5}
    assert operator("PUT", "limits/default", default).json() == NONE_OF_TENANT | default
    operator("PUT", "limits", {"operator": {"tokens_per_day": 1000}})
    answer = admin("GET", "limits")
    assert figures(answer, "operator") == {"tokens_per_day": 1000}
    assert figures(answer, "ceiling") == {"tokens_per_day": 1000, "requests_per_minute": 5}
    refused = admin("PUT", "limits", {"own": {"requests_per_minute": 6}})
    assert refusals(refused) == {"own.requests_per_minute": "6 is above the ceiling of 5."}
    changed = operator("PATCH", "limits/default", {"requests_per_minute": 6})
    assert changed.json() == NONE_OF_TENANT | {"tokens_per_day": 100, "requests_per_minute": 6}
    assert figures(admin("GET", "limits"), "in_force")["requests_per_minute"] == 6
    assert operator("PUT", "limits/default", {}).json() == NONE_OF_TENANT
    assert operator("GET", "limits/default").json() == NONE_OF_TENANT
    assert refusals(operator("PUT", "limits/default", {"tokens_per_day": -1, "own": {}})) == {
        "own": "Unknown field."
    }
    assert refusals(operator("PUT", "limits/default", {"tokens_per_day": -1})).keys() == {
        "tokens_per_day"
    }


def test_an_operator_of_many_tenants_need_not_name_one(operator: Api) -> None:
    make_tenant("other")
    operator.tenant = None
    assert operator("GET", "limits/default").status_code == 200


# --- Lanes and pins ------------------------------------------------------------------------------


def test_a_key_has_a_lane(admin: Api) -> None:
    body = {"name": "k", "scopes": ["inference"]}
    assert admin("POST", "keys", body).json()["lane"] == "interactive"
    made = admin("POST", "keys", body | {"lane": "batch"}).json()
    assert made["lane"] == "batch" and ApiKey.objects.get(pk=made["id"]).lane == "batch"
    assert admin("GET", "keys", lane="batch").json()["count"] == 1
    path = f"keys/{made['id']}"
    assert admin("PATCH", path, {"lane": "interactive"}).json()["lane"] == "interactive"
    assert refusals(admin("PATCH", path, {"lane": "fast"})).keys() == {"lane"}
    assert refusals(admin("GET", "keys", lane="fast")).keys() == {"lane"}


def test_operators_pin_adapters_and_members_see_it(
    admin: Api, operator: Api, adapter: Adapter
) -> None:
    assert admin("GET", "adapters/support").json()["pinned"] is False
    assert operator("PATCH", "adapters/support", {"pinned": True}).json()["pinned"] is True
    assert admin("GET", "adapters", pinned="true").json()["count"] == 1
    assert admin("PATCH", "adapters/support", {"pinned": False}).status_code == 403
    key = with_key(adapter.tenant, "admin", "adapters:write")[0]
    assert key("PATCH", "adapters/support", {"pinned": False}).status_code == 403
    adapter.refresh_from_db()
    assert adapter.pinned
    for body, field in (({"name": "new"}, "name"), ({"pinned": "perhaps"}, "pinned")):
        assert refusals(operator("PATCH", "adapters/support", body)).keys() == {field}


# --- In the database -----------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["key", "adapter"])
def test_limits_are_of_one_tenant(adapter: Adapter, part: str) -> None:
    owned: Any = {"key": make_key(adapter.tenant)[0], "adapter": adapter}[part]
    limits = LimitScope(adapter.tenant, **{part: owned})
    limits.store(LimitSet.Author.TENANT, {"tokens_per_day": 1})
    other = make_tenant("other")
    for write in (
        lambda: LimitSet.objects.create(tenant=other, author="operator", **{part: owned}),
        lambda: LimitSet.objects.update(tenant=other),
    ):
        with pytest.raises(IntegrityError, match="what is not of tenant"), transaction.atomic():
            write()
