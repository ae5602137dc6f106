"""Jobs that write archives of tenants, and delete tenants. A job that is killed is run again: an
archive begins anew, a deletion goes on."""

from __future__ import annotations

import procrastinate
import structlog
from django.db import transaction
from procrastinate import JobContext
from procrastinate.contrib.django import app as django_app
from procrastinate.exceptions import JobAborted

from tenants.adapters.jobs import Backoff
from tenants.models import AuditEntry, TenantExport
from tenants.models.audit import Actor
from tenants.offboarding import deletion, exports
from tenants.offboarding.archive import Pulse
from tenants.permissions import Caller, Permission
from tenants.queueing import defer_once

app: procrastinate.App = django_app
log = structlog.get_logger(__name__)

QUEUE = "offboarding"
"""A queue of its own: a job may take hours."""


def export_later(caller: Caller, actor: Actor | None) -> TenantExport:
    """Have a worker write an archive of the caller's tenant; with what only members read if the
    caller is one who may. `actor` is for the audit log.

    Raises:
        ExportUnderWay: the previous one is not finished.
    """
    assert caller.user is not None, "keys may not export"
    content = caller.may(Permission.READ_CONTENT)
    by = caller.user.get_username()
    with transaction.atomic():
        export = TenantExport.objects.ask(caller.tenant, by=by, content=content)
        AuditEntry.objects.note(actor, caller.tenant, "created", export.pk, kind="export")
        _queue(export)
    return export


def _queue(export: TenantExport) -> None:
    defer_once(write_export, export.pk, export_id=export.pk)


def _stopping(context: JobContext) -> Pulse:
    """What ends a job, to be run again, as soon as its worker is stopped."""

    def pulse() -> None:
        if context.should_abort():
            raise JobAborted("the worker stops")

    return pulse


@app.task(name="write_export", queue=QUEUE, retry=Backoff(), pass_context=True)
def write_export(context: JobContext, export_id: str) -> None:
    """Write an archive.

    Raises:
        OSError: the disk is full, for example; it is tried again.
    """
    unfinished = TenantExport.objects.filter(finished_at=None).select_related("tenant")
    export = unfinished.filter(pk=export_id).first()
    if export is not None:
        exports.make(export, _stopping(context))
        log.info("tenant_exported", tenant=export.tenant.slug, export=export_id)


@app.periodic(cron="*/10 * * * *")
@app.task(name="tend_offboarding", queueing_lock="tend_offboarding")
def tend_offboarding(timestamp: int) -> None:
    """Every ten minutes: delete expired archives and tenants whose time has come, and resume what
    waits without a job."""
    exports.remove_expired()
    for export in TenantExport.objects.filter(finished_at=None):
        _queue(export)
    for one in deletion.due():
        defer_once(delete_tenant, f"deletion-{one.pk}", deletion_id=one.pk)


@app.task(name="delete_tenant", queue=QUEUE, retry=Backoff(), pass_context=True)
def delete_tenant(context: JobContext, deletion_id: int) -> None:
    """Delete a tenant whose time has come.

    Raises:
        OSError: files or the mail server are not available; it is tried again.
    """
    found = deletion.due().select_related("tenant").filter(pk=deletion_id).first()
    if found is not None:
        pulse = _stopping(context)
        deletion.run(found, lambda message: pulse())
