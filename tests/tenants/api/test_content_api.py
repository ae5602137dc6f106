"""Whether prompts and answers are stored, over the management API."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.models import AuditEntry, ContentKey, Tenant
from tests.tenants.callers import person, with_key

pytestmark = pytest.mark.django_db


def test_an_admin_has_content_stored_and_destroyed(tenant: Tenant) -> None:
    ask, admin = person(tenant, "admin")
    assert ask("GET", "content").json() == {
        "days": 0, "overflow": False, "available": True, "stored": 0,
    }  # fmt: skip
    assert ask("PATCH", "content", {"days": 7}).json()["days"] == 7
    assert ask("PATCH", "content", {}).json()["days"] == 7
    tenant.refresh_from_db()
    assert tenant.content_days == 7
    (key,) = ask("GET", "content/keys").json()["results"]
    assert (key["destroyed_at"], key["confirmation"]) == (None, "")
    destroyed = ask("POST", "content/destroy").json()
    assert destroyed["id"] == key["id"] and destroyed["confirmation"].count(".") == 2
    assert ask("GET", "content/keys").json()["results"] == [destroyed]
    assert ask("GET", "content").json()["days"] == 0
    answer = ask("POST", "content/destroy")
    assert (answer.status_code, answer.json()["code"]) == (409, "no_content_key")
    logged = AuditEntry.objects.filter(kind__in=("tenant", "content key"), tenant=tenant)
    assert {one.actor_name for one in logged if one.action == "changed"} == {admin.username}


def test_a_key_may_only_shorten_the_time(tenant: Tenant) -> None:
    ask, _ = with_key(tenant, "admin")
    refused = ask("PATCH", "content", {"days": 1})
    assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_permissions")
    assert not ContentKey.objects.exists()
    admin, _ = person(tenant, "owner")
    admin("PATCH", "content", {"days": 7})
    assert ask("PATCH", "content", {"days": 8}).status_code == 403
    for days in (7, 3, 0):
        assert ask("PATCH", "content", {"days": days}).json()["days"] == days
    assert ask("PATCH", "content", {"days": 3}).status_code == 403
    assert ask("POST", "content/destroy").status_code == 403


def test_a_key_may_only_forbid_that_prompts_leave(tenant: Tenant) -> None:
    ask, _ = with_key(tenant, "admin")
    refused = ask("PATCH", "content", {"overflow": True})
    assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_permissions")
    wrong = ask("PATCH", "content", {"overflow": "perhaps"})
    assert wrong.status_code == 400 and wrong.json()["errors"][0]["field"] == "overflow"
    admin, _ = person(tenant, "admin")
    assert admin("PATCH", "content", {"overflow": True}).json()["overflow"] is True
    for overflow in (True, False):
        answer = ask("PATCH", "content", {"overflow": overflow})
        assert answer.json()["overflow"] is overflow
    tenant.refresh_from_db()
    assert not tenant.overflow and ask("PATCH", "content", {"overflow": True}).status_code == 403


def test_a_key_that_stores_nothing_makes_none_that_do(tenant: Tenant) -> None:
    ask, _ = with_key(tenant, "admin", keeps_nothing=True)
    new = {"name": "new", "scopes": ["admin"]}
    refused = ask("POST", "keys", new)
    assert refused.status_code == 400 and "keeps_nothing" in refused.content.decode()
    made = ask("POST", "keys", new | {"keeps_nothing": True}).json()
    assert made["keeps_nothing"] is True
    loosened = ask("PATCH", f"keys/{made['id']}", {"keeps_nothing": False})
    assert loosened.status_code == 400
    assert ask("GET", f"keys/{made['id']}").json()["keeps_nothing"] is True


@pytest.mark.parametrize(
    "body", [{"days": 31}, {"days": -1}, {"days": "7"}, {"days": None}, {"stored": 1}, [], "7"]
)
def test_invalid_choices_are_refused(tenant: Tenant, body: Any) -> None:
    ask, _ = person(tenant, "owner")
    assert ask("PATCH", "content", body).status_code == 400
    assert not ContentKey.objects.exists()


def test_without_a_master_key_nothing_can_be_stored(tenant: Tenant, settings: Any) -> None:
    settings.CONTENT_KEY = ""
    ask, _ = person(tenant, "owner")
    assert ask("GET", "content").json()["available"] is False
    answer = ask("PATCH", "content", {"days": 7})
    assert (answer.status_code, answer.json()["code"]) == (409, "content_unavailable")
