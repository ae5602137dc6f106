"""Exports and deletions of a tenant in the console: who asks for them, and what is shown."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from procrastinate.exceptions import JobAborted

from tenants.errors import ExportUnderWay
from tenants.files import blobs, keeping
from tenants.models import ApiKey, AuditEntry, Tenant, TenantDeletion, TenantExport
from tenants.offboarding.jobs import delete_tenant, tend_offboarding, write_export
from tenants.queueing import has_job
from tests.frontend.clients import client_of
from tests.tenants.callers import Api, person
from tests.tenants.making import make_key, make_user

pytestmark = pytest.mark.django_db


class _Job:
    """A job's context, of a worker that is stopped or not."""

    def __init__(self, *, stops: bool) -> None:
        self._stops = stops

    def should_abort(self) -> bool:
        return self._stops


def run_write(id: str, *, stops: bool = False) -> None:
    context: Any = _Job(stops=stops)
    write_export(context, id)


def run_deletion(id: int, *, stops: bool = False) -> None:
    context: Any = _Job(stops=stops)
    delete_tenant(context, id)


def finished(tenant: Tenant) -> TenantExport:
    """The newest export, after its job."""
    newest = TenantExport.objects.filter(tenant=tenant)[0]
    run_write(newest.pk)
    newest.refresh_from_db()
    return newest


def download(client: Client, export: TenantExport) -> Any:
    return client.get(f"/t/acme/data/{export.pk}")


def test_an_owner_gets_one_from_a_worker(tenant: Tenant) -> None:
    owner = client_of(tenant, "owner")
    assert "Export everything" in owner.get("/t/acme/data").text
    assert owner.post("/t/acme/data").status_code == 302
    assert "Being written" in owner.get("/t/acme/data").text
    with pytest.raises(ExportUnderWay):
        TenantExport.objects.ask(tenant, by="x", content=True)
    assert owner.post("/t/acme/data", follow=True).text.count("already being written") == 1
    export = finished(tenant)
    run_write(export.pk)  # does nothing
    answer = download(owner, export)
    with blobs.open(export.pk) as file:
        data = file.read()
    assert (
        answer.status_code == 200
        and export.content
        and hashlib.sha256(data).hexdigest() == export.sha256
    )
    assert (
        len(data) == export.size_bytes == int(answer["Content-Length"])
        and ".zip" in answer["Content-Disposition"]
    )
    logged = AuditEntry.objects.filter(kind="export", tenant=tenant).values_list("action", "name")
    assert [*logged] == [("downloaded", export.pk), ("created", export.pk)]
    operator = client_of(tenant, "operator")
    assert download(operator, export).status_code == 404
    for role, status in (("admin", 403), ("viewer", 403), ("outsider", 404)):
        other = client_of(tenant, role)
        assert download(other, export).status_code == status
        assert other.post("/t/acme/data").status_code == status


def test_an_operators_export_is_for_the_owner_as_well(tenant: Tenant) -> None:
    operator = client_of(tenant, "operator")
    operator.post("/t/acme/data")
    export = finished(tenant)
    assert not export.content
    for role in ("operator", "owner"):
        assert download(client_of(tenant, role), export).status_code == 200


def test_a_suspended_tenant_can_be_exported(tenant: Tenant) -> None:
    tenant.set_status(Tenant.Status.SUSPENDED)
    client_of(tenant, "owner").post("/t/acme/data")
    assert TenantExport.objects.exists()


def test_it_is_deleted_after_a_week(tenant: Tenant) -> None:
    TenantExport.objects.ask(tenant, by="x", content=True)
    export = finished(tenant)
    keeping.remove_strays()
    tend_offboarding(0)
    assert blobs.exists(export.pk)
    assert export.expires_at is not None and export.expires_at > timezone.now()
    TenantExport.objects.update(expires_at=timezone.now())
    assert download(client_of(tenant, "owner"), export).status_code == 404
    tend_offboarding(0)
    assert not TenantExport.objects.exists()


# --- Deletion ------------------------------------------------------------------------------------

WORD = {"slug": "acme"}


@pytest.mark.parametrize("role", ["owner", "operator"])
def test_an_owner_or_operator_deletes_by_typing_the_slug_and_takes_it_back(
    tenant: Tenant, role: str
) -> None:
    client = client_of(tenant, role)
    wrong = client.post("/t/acme/data/delete", {"slug": "acm"})
    assert wrong.status_code == 422 and "This is not acme." in wrong.text
    assert not TenantDeletion.objects.exists()
    shown = client.post("/t/acme/data/delete", WORD, follow=True)
    asked = TenantDeletion.objects.get()
    assert asked.by_operator == (role == "operator")
    assert (asked.due_at - asked.asked_at).days in (29, 30)
    assert not Tenant.objects.get().active
    words = f"Will be deleted on {asked.due_at:%Y-%m-%d}"
    assert words in shown.text and 'data-opens="keep"' in shown.text
    assert words in client.get("/t/acme/").text
    if role == "operator":
        assert words in client.get("/operate/tenants/acme").text
        refused = client.post("/operate/tenants/acme/activate", follow=True)
        assert "to be deleted" in refused.text and not Tenant.objects.get().active
    client.post("/t/acme/data/keep")
    assert not TenantDeletion.objects.exists() and Tenant.objects.get().active
    logged = AuditEntry.objects.filter(kind="deletion").values_list("action", "actor_kind")
    assert [*logged] == [("deleted", "user"), ("created", "user")]


@pytest.mark.parametrize(
    ("role", "status"), [("admin", 403), ("developer", 403), ("viewer", 403), ("outsider", 404)]
)
def test_nobody_else_may(tenant: Tenant, role: str, status: int) -> None:
    client = client_of(tenant, role)
    for what in ("delete", "keep"):
        assert client.post(f"/t/acme/data/{what}", WORD).status_code == status
    assert not TenantDeletion.objects.exists()


def test_an_owner_does_not_take_back_what_an_operator_asked_for(tenant: Tenant) -> None:
    client_of(tenant, "operator").post("/t/acme/data/delete", WORD)
    owner = client_of(tenant, "owner")
    assert 'data-opens="keep"' not in owner.get("/t/acme/data").text
    assert owner.post("/t/acme/data/keep").status_code == 403
    assert TenantDeletion.objects.exists()


def test_after_it_operators_have_the_receipt_and_nobody_changes_anything(tenant: Tenant) -> None:
    owner, operator = client_of(tenant, "owner"), client_of(tenant, "operator")
    make_key(tenant)
    owner.post("/t/acme/data/delete", WORD)
    asked = TenantDeletion.objects.get()
    assert operator.get("/t/acme/data/receipt").status_code == 404
    asked.hasten()
    run_deletion(asked.pk)
    assert not ApiKey.objects.exists()
    assert owner.get("/t/acme/data").status_code == 404
    page = operator.get("/t/acme/data").text
    assert "Only the ledger is left" in page and "Api keys" in page
    told = operator.get("/t/acme/data/receipt").json()
    assert (told["object"], told["receipt"]["deleted"]["api_keys"]) == ("tenant.deleted", 1)
    assert "Deleted on" in operator.get("/operate/tenants/acme").text
    changes: dict[str, dict[str, str]] = {
        "/t/acme/data": {},
        "/t/acme/keys": {"name": "x"},
        "/t/acme/data/keep": {},
        "/operate/tenants/acme": {"name": "Again", "weight": "1"},
    }
    for where, body in changes.items():
        assert operator.post(where, body).status_code == 403, where
    taken = operator.post("/operate/tenants", {"name": "A", "slug": "acme", "weight": "1"})
    assert taken.status_code == 422


def test_the_management_api_does_the_same(tenant: Tenant) -> None:
    owner, _ = person(tenant, "owner")
    path = "tenants/acme/deletion"
    assert owner("POST", path, {"confirm": "acm"}).json()["errors"][0]["field"] == "confirm"
    made = owner("POST", path, {"confirm": "acme"}).json()
    assert (made["by_operator"], made["ended_at"], made["receipt"]) == (False, None, "")
    assert owner("GET", path).json() == made
    assert owner("POST", path, {"confirm": "acme"}).json()["code"] == "tenant_being_deleted"
    operator = Api(make_user(is_staff=True))
    refused = operator("PATCH", "tenants/acme", {"status": "active"})
    assert (refused.status_code, refused.json()["code"]) == (409, "tenant_being_deleted")
    assert owner("DELETE", path).status_code == 204 and Tenant.objects.get().active
    owner("POST", path, {"confirm": "acme"})
    asked = TenantDeletion.objects.get()
    asked.hasten()
    run_deletion(asked.pk)
    ended = operator("GET", path).json()
    assert ended["receipt"].count(".") == 2 and ended["deleted"]["members"] == 1
    again = operator("PATCH", "tenants/acme", {"name": "Again"})
    assert (again.status_code, again.json()["code"]) == (403, "tenant_deleted")


def test_a_worker_finds_what_is_due(tenant: Tenant) -> None:
    client_of(tenant, "owner").post("/t/acme/data/delete", WORD)
    tend_offboarding(0)
    asked = TenantDeletion.objects.get()
    assert not has_job(f"deletion-{asked.pk}")
    run_deletion(asked.pk)  # does nothing: it is not due
    assert Tenant.objects.get().memberships.exists()
    asked.hasten()
    tend_offboarding(0)
    assert has_job(f"deletion-{asked.pk}")


def test_a_worker_that_is_stopped_leaves_the_rest_to_another(tenant: Tenant) -> None:
    owner = client_of(tenant, "owner")
    make_key(tenant)
    owner.post("/t/acme/data")
    export = TenantExport.objects.get()
    with pytest.raises(JobAborted):
        run_write(export.pk, stops=True)
    assert not blobs.exists(export.pk)
    assert finished(tenant).size_bytes > 0
    owner.post("/t/acme/data/delete", WORD)
    asked = TenantDeletion.objects.get()
    asked.hasten()
    with pytest.raises(JobAborted):
        run_deletion(asked.pk, stops=True)
    assert ApiKey.objects.exists()
    run_deletion(asked.pk)
    asked.refresh_from_db()
    assert not ApiKey.objects.exists() and asked.counts["api_keys"] == 1
