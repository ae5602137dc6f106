"""The audit log: every change with its actor, whether a user, a key or the system."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client

from tenants.models import (
    AdapterVersion,
    ApiKey,
    AuditActor,
    AuditEntry,
    LimitSet,
    Membership,
    State,
    Tenant,
)
from tenants.models.audit import MAX_NAMES, Actor, acting
from tests.tenants.making import make_adapter, make_key, make_member, make_tenant, make_version

ADA = Actor("user", 7, "ada", "192.0.2.1", "req-1")


def last() -> AuditEntry:
    entry = AuditEntry.objects.first()
    assert entry is not None
    return entry


def test_a_change_is_written_with_who_made_it_and_what_differs(tenant: Tenant) -> None:
    with acting(ADA):
        tenant.name = "Renamed"
        tenant.save()
    entry = last()
    assert (entry.actor_kind, entry.actor_id, entry.actor_name) == ("user", 7, "ada")
    assert (entry.address, entry.request_id) == ("192.0.2.1", "req-1")
    assert (entry.action, entry.kind, entry.name, entry.tenant) == (
        "changed",
        "tenant",
        tenant.slug,
        tenant,
    )
    assert (entry.before, entry.after) == ({"name": "Acme"}, {"name": "Renamed"})


def test_changes_without_an_actor_are_attributed_to_the_system(tenant: Tenant) -> None:
    with acting(ADA):
        pass
    make_adapter(tenant)
    assert (last().actor_kind, last().actor_name, last().actor_id) == ("system", "", None)


def test_secrets_are_in_no_entry(tenant: Tenant) -> None:
    key, text = make_key(tenant)
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(to_jsonb(e)::text, '') FROM tenants_auditentry e")
        ((everything,),) = cursor.fetchall()
    assert text not in everything
    assert "secret_hmac" not in everything and "cache_secret" not in everything
    assert bytes(key.secret_hmac).hex() not in everything


def test_a_key_that_was_used_is_not_a_key_that_changed(tenant: Tenant) -> None:
    key, _ = make_key(tenant)
    before = AuditEntry.objects.count()
    ApiKey.objects.filter(pk=key.pk).touch(key.created_at)
    assert AuditEntry.objects.count() == before
    key.revoke()
    assert (last().kind, last().action, set(last().after or {})) == (
        "key",
        "changed",
        {"revoked_at"},
    )


def test_members_limits_versions_and_aliases_are_their_tenants(tenant: Tenant) -> None:
    member = make_member(tenant, "viewer")
    assert (last().kind, last().name, last().tenant) == ("member", member.username, tenant)
    LimitSet.objects.create(tenant=tenant, author="operator", requests_per_minute=5)
    assert (last().kind, last().tenant, (last().after or {})["requests_per_minute"]) == (
        "limits",
        tenant,
        5,
    )
    adapter = make_adapter(tenant)
    version = make_version(adapter)
    entry = last()
    assert (entry.kind, entry.tenant, entry.name) == ("version", tenant, f"{adapter.name}@1")
    assert entry.after == {"state": "ready"}
    adapter.promote(version)
    assert (last().kind, last().name, last().action) == ("alias", f"{adapter.name}@live", "created")
    Membership.objects.filter(user=member).delete()
    assert (last().action, last().after) == ("deleted", None)


@pytest.mark.parametrize("end", [State.READY, State.REJECTED])
def test_of_a_versions_checks_only_the_end_is_shown(tenant: Tenant, end: State) -> None:
    adapter = make_adapter(tenant)
    version = AdapterVersion.objects.create(adapter=adapter, number=3, digest="d" * 64)
    for state in (State.VALIDATING, State.PROBING, end):
        AdapterVersion.objects.filter(pk=version.pk).update(state=state)
    entries = AuditEntry.objects.filter(kind="version").order_by("id")
    assert entries.count() == 4
    shown = [(one.action, one.name, (one.after or {})["state"]) for one in entries.without_steps()]
    assert shown == [
        ("created", f"{adapter.name}@3", "uploading"), ("changed", f"{adapter.name}@3", end),
    ]  # fmt: skip
    version.delete()
    assert (last().action, last().name) == ("deleted", f"{adapter.name}@3")


@pytest.mark.django_db
def test_a_tenant_that_is_gone_leaves_its_log() -> None:
    tenant = make_tenant("gone")
    id = tenant.pk
    tenant.delete()
    assert AuditEntry.objects.filter(tenant_id=id, kind="tenant").count() == 2


def test_nobody_rewrites_the_log(tenant: Tenant) -> None:
    for attempt in (
        lambda: AuditEntry.objects.update(actor_name="somebody else"),
        lambda: AuditEntry.objects.all().delete(),
    ):
        with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
            attempt()


def test_an_operators_look_is_noted(tenant: Tenant) -> None:
    AuditEntry.objects.note(ADA, tenant, "viewed", tenant.slug)
    assert (last().action, last().actor_name, last().tenant) == ("viewed", "ada", tenant)


def test_the_api_says_who_it_was(tenant: Tenant) -> None:
    key, text = make_key(tenant, "admin")
    admin = make_member(tenant, "admin")
    by_key, by_user = Client(headers={"Authorization": f"Bearer {text}"}), Client()
    by_user.force_login(admin)
    for client, kind, name in ((by_key, "key", key.name), (by_user, "user", admin.username)):
        body = {"name": f"By {kind}"}
        address = f"/api/v1/tenants/{tenant.slug}"
        answer = client.patch(address, body, content_type="application/json")
        assert answer.status_code == 200, answer.content
        entry = last()
        assert (entry.actor_kind, entry.actor_name) == (kind, name)
        assert (entry.address, entry.after) == ("127.0.0.1", {"name": f"By {kind}"})
        assert answer["x-request-id"] == f"req_{entry.request_id}"
    make_adapter(tenant)
    assert last().actor_kind == "system"


# --- Search by part of a name --------------------------------------------------------------------


def did(tenant: Tenant, *actors: Actor) -> None:
    for actor in actors:
        AuditEntry.objects.note(actor, tenant, "viewed", tenant.slug)


def names_by(who: str) -> set[str]:
    return set(AuditEntry.objects.by(who).values_list("actor_name", flat=True))


def test_entries_are_found_by_part_of_a_name(tenant: Tenant) -> None:
    """No such users exist: the log keeps the names of deleted ones."""
    did(tenant, ADA, Actor("user", 8, "Adam"), Actor("key", 9, "nightly"), Actor("user", 9, "a_a"))
    assert names_by("ADA") == {"ada", "Adam"}
    assert names_by("nightly") == {"nightly"}
    assert names_by("a_") == {"a_a"}
    assert names_by("nobody") == set()


def test_entries_are_found_by_the_kind_of_actor(tenant: Tenant) -> None:
    did(tenant, ADA, Actor("key", 9, "nightly"), Actor("user", 10, "the keykeeper"))
    assert names_by("Key") == {"nightly", "the keykeeper"}
    assert names_by("user") == {"ada", "the keykeeper"}
    assert names_by("system") == {""}


def test_a_name_that_very_many_share(tenant: Tenant) -> None:
    """More names than are looked up one by one."""
    every = {f"member-{number}" for number in range(MAX_NAMES + 1)}
    AuditEntry.objects.bulk_create(
        AuditEntry(actor_kind="user", actor_name=name, action="viewed", kind="tenant")
        for name in [*every, "somebody else"]
    )
    assert names_by("ember") == every


def test_each_name_is_kept_once_and_only_with_its_entry(tenant: Tenant) -> None:
    did(tenant, ADA, ADA, Actor("key", 8, "Adam"))
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        did(tenant, Actor("user", 1, "eve"))
        raise ZeroDivisionError
    assert sorted(AuditActor.objects.values_list("name", flat=True)) == ["Adam", "ada"]
