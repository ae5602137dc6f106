"""Exports of a tenant in the console: who asks for them, and who gets them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tenants.errors import ExportUnderWay
from tenants.files import disk, keeping
from tenants.models import AuditEntry, Tenant, TenantExport
from tenants.offboarding.jobs import tend_offboarding, write_export
from tests.frontend.clients import client_of

pytestmark = pytest.mark.django_db


def finished(tenant: Tenant) -> TenantExport:
    """The newest export, after its job."""
    newest = TenantExport.objects.filter(tenant=tenant)[0]
    write_export(newest.pk)
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
    write_export(export.pk)  # does nothing
    answer = download(owner, export)
    data = disk.path(export.pk).read_bytes()
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
    assert disk.path(export.pk).exists()
    assert export.expires_at is not None and export.expires_at > timezone.now()
    TenantExport.objects.update(expires_at=timezone.now())
    assert download(client_of(tenant, "owner"), export).status_code == 404
    tend_offboarding(0)
    assert not TenantExport.objects.exists()
