"""What operators do over the management API: users, the audit log, checks of isolation."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob

from tenants.models import IsolationCheck, Tenant, User
from tests.tenants.callers import Api, person
from tests.tenants.making import make_key, make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Api:
    return Api(make_user("operator", is_staff=True))


def test_users_and_their_rights(operator: Api, tenant: Tenant) -> None:
    ada = make_member(tenant, "admin")
    (row,) = operator("GET", "users", username=ada.username).json()["results"]
    assert row["memberships"] == [{"tenant": "acme", "role": "admin"}]
    assert (row["active"], row["operator"]) == (True, False)
    changed = operator("PATCH", f"users/{ada.pk}", {"active": False, "operator": True})
    assert (changed.status_code, changed.json()["active"]) == (200, False)
    ada.refresh_from_db()
    assert (ada.is_active, ada.is_staff) == (False, True)
    (listed,) = operator("GET", "users", active="false").json()["results"]
    assert listed["id"] == ada.pk
    refused = operator("PATCH", f"users/{ada.pk}", {"username": "eve"})
    assert refused.status_code == 400 and "username" in str(refused.json()["errors"])


def test_the_last_operator_stays(operator: Api) -> None:
    me = User.objects.get(username="operator")
    for body in ({"active": False}, {"operator": False}):
        answer = operator("PATCH", f"users/{me.pk}", body)
        assert (answer.status_code, answer.json()["code"]) == (409, "last_operator")


def test_the_audit_log_page_by_page(tenant: Tenant) -> None:
    admin, _ = person(tenant, "admin")
    for name in ("one", "two", "three"):
        assert admin("POST", "keys", {"name": name, "scopes": ["inference"]}).status_code == 201
    make_key(make_tenant("other"))
    seen, query = [], {"kind": "key", "limit": "2"}
    while query:
        page = admin("GET", "audit", **query).json()
        seen += [(one["name"], one["action"], one["tenant"]) for one in page["results"]]
        query = dict(parse_qsl(urlsplit(page["next"] or "").query))
    assert seen == [(name, "created", "acme") for name in ("three", "two", "one")]
    (mine, *_) = admin("GET", "audit", actor="user").json()["results"]
    assert mine["after"]["name"] == "three" and mine["actor_kind"] == "user"
    past = (timezone.now() - timedelta(days=1)).isoformat()
    assert admin("GET", "audit", end=past).json()["results"] == []


@pytest.mark.parametrize(
    "query",
    [{"kind": "secrets"}, {"limit": "0"}, {"before": "x"}, {"page": "2"}, {"start": "yesterday"}],
)
def test_a_wrong_question_to_the_audit_log(tenant: Tenant, query: dict[str, str]) -> None:
    admin, _ = person(tenant, "admin")
    answer = admin("GET", "audit", **query)
    assert answer.status_code == (404 if "before" in query else 400)


def test_the_installations_log_leaves_its_own_checks_out(operator: Api, tenant: Tenant) -> None:
    make_key(tenant)
    make_key(make_tenant("checks", internal=True))
    found = {one["tenant"] for one in operator("GET", "installation/audit").json()["results"]}
    assert "acme" in found and "checks" not in found
    named = operator("GET", "installation/audit", tenant="checks").json()["results"]
    assert {one["tenant"] for one in named} == {"checks"}


def test_checks_of_isolation(operator: Api) -> None:
    for passed in (None, True):
        IsolationCheck.objects.create(base_model="base", passed=passed, engines=["engine-1"])
    (found,) = operator("GET", "isolation").json()["results"]
    assert (found["base_model"], found["passed"], found["engines"]) == ("base", True, ["engine-1"])
    for _ in range(2):
        assert operator("POST", "isolation").status_code == 202
    assert ProcrastinateJob.objects.filter(task_name="check_isolation").count() == 1
