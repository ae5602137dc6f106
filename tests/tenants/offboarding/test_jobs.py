"""A real worker exports and deletes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from tenants.files import blobs
from tenants.models import ApiKey, TenantDeletion, TenantExport
from tenants.offboarding.jobs import QUEUE, export_later, tend_offboarding
from tenants.permissions import Caller
from tests.adapters.working import run_worker
from tests.tenants.making import make_key, make_member, make_tenant


@pytest.mark.django_db(transaction=True)
def test_a_worker_writes_an_archive_and_deletes_a_tenant() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE procrastinate_jobs CASCADE")
    tenant = make_tenant("acme")
    make_key(tenant)
    export = export_later(Caller.of_member(make_member(tenant, "owner"), tenant), None)
    run_worker(QUEUE)
    export.refresh_from_db()
    with blobs.open(export.pk) as file:
        assert export.finished_at and len(file.read()) == export.size_bytes > 0
    TenantDeletion.objects.ask(tenant, by="ann", by_operator=False, grace=timedelta(0))
    tend_offboarding(0)
    run_worker(QUEUE)
    assert TenantDeletion.objects.get().ended_at
    assert not ApiKey.objects.exists() and not TenantExport.objects.exists()
    assert not blobs.exists(export.pk)
