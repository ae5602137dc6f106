"""The jobs of a batch: reading its file before it starts, and writing its answers at the end.

Each job can be killed and run again: it checks the batch's state first, and advances it in one
step. Between the two jobs `tenants.batches.runner` runs the batch.
"""

from __future__ import annotations

from typing import Any

import procrastinate
import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from procrastinate.contrib.django import app as django_app

from inference.errors import short
from tenants.adapters import sandbox
from tenants.adapters.jobs import Backoff
from tenants.batch_states import Status
from tenants.batches import response_leases, writing
from tenants.batches.reading import MAX_BYTES
from tenants.files import blobs
from tenants.models import AdapterVersion, BaseModel, Batch, Route, State
from tenants.naming import adapter_of
from tenants.queueing import has_job

app: procrastinate.App = django_app
log = structlog.get_logger(__name__)

QUEUE = "batches"


def _lock(batch: Batch) -> str:
    return f"batch-{batch.pk}"


def read_later(batch: Batch) -> None:
    """Have a worker read the batch's file, once the current transaction commits."""
    read_batch.configure(lock=_lock(batch)).defer(batch_id=batch.pk)


def write_later(batch: Batch) -> None:
    """Have a worker write the batch's output files, once the current transaction commits."""
    write_batch.configure(lock=_lock(batch)).defer(batch_id=batch.pk)


@app.task(name="read_batch", queue=QUEUE, retry=Backoff())
def read_batch(batch_id: str) -> None:
    """Read a batch's file: the batch starts, or fails with the errors of each line."""
    batch = Batch.objects.select_related("input_file").filter(pk=batch_id).first()
    if batch is None or batch.status != Status.VALIDATING:
        return
    found = _read(batch)
    errors = found["errors"] or _unknown_models(batch, found["models"])
    if errors:
        batch.advance(Status.FAILED, errors=errors)
    else:
        batch.advance(Status.IN_PROGRESS, total=found["requests"])
    log.info("batch_read", batch=batch.pk, requests=found["requests"], errors=len(errors))


def _read(batch: Batch) -> dict[str, Any]:
    """The fields of a `reading.Report`."""
    size = batch.input_file.size_bytes
    if size > MAX_BYTES:
        text = f"The file has {size} bytes; the input file of a batch can have at most {MAX_BYTES}."
        return _refused("file_too_large", text)
    task = {
        "task": "batch",
        "operation": batch.operation,
        "max_body_bytes": settings.MAX_REQUEST_BYTES,
    }
    try:
        with blobs.open(batch.input_file_id) as file:
            return sandbox.run(task, {"batch": (file, "rb")}, sandbox.SandboxLimits.for_bytes(size))
    except sandbox.LimitExceeded as error:
        return _refused("file_unreadable", f"Reading the file exceeded a resource limit ({error}).")
    except sandbox.Crashed:
        return _refused("file_unreadable", "The file could not be read.")
    except FileNotFoundError:
        return _refused("file_missing", "The file was deleted.")


def _refused(
    code: str, message: str, line: int | None = None, param: str | None = None
) -> dict[str, Any]:
    error = {"code": code, "message": short(message), "param": param, "line": line}
    return {"requests": 0, "models": {}, "errors": [error]}


def _unknown_models(batch: Batch, models: dict[str, int]) -> list[dict[str, Any]]:
    """An error for each model that is unknown or not allowed, at the first line that names it. An
    adapter's name is resolved again for each line when it runs."""
    bases = set(BaseModel.objects.values_list("name", flat=True))
    versions = AdapterVersion.objects.filter(adapter__tenant=batch.tenant_id, state=State.READY)
    names = bases | set(versions.values_list("adapter__name", flat=True))
    routes = set(Route.objects.filter(tenant=batch.tenant_id).values_list("name", flat=True))
    errors: list[dict[str, Any]] = []
    for model, line in models.items():
        if model in routes - names:  # which options the key may use is seen when a line runs
            continue
        name = model if model in bases else adapter_of(model).partition("@")[0]
        if name not in names or not batch.key.may_use(name):
            message = f"The model `{model[:200]}` does not exist or you do not have access to it."
            errors += _refused("model_not_found", message, line, "body.model")["errors"]
    return errors


@app.task(name="write_batch", queue=QUEUE, retry=Backoff())
def write_batch(batch_id: str) -> None:
    """Write the answers of a batch to its output files, and end it."""
    batch = Batch.objects.select_related("input_file").filter(pk=batch_id).first()
    if batch is None or batch.status != Status.FINALIZING:
        return
    with writing.files_of(batch) as files, transaction.atomic():
        for file in files.values():
            file.save(force_insert=True)
        if not batch.advance(Status(batch.ending), **files):
            raise RuntimeError("nobody else ends a batch that is finalizing")
        batch.lines.all().delete()
    log.info("batch_ended", batch=batch.pk, status=batch.status)


@app.periodic(cron="*/5 * * * *")
@app.task(name="tend_batches", queueing_lock="tend_batches")
def tend_batches(timestamp: int) -> None:
    """Every five minutes: queue the jobs of batches that lost theirs, and expire batches and
    background responses that no worker runs."""
    response_leases.expire()
    for batch in Batch.objects.unfinished():
        if batch.status == Status.VALIDATING and not has_job(_lock(batch)):
            read_later(batch)
        elif batch.status == Status.FINALIZING and not has_job(_lock(batch)):
            write_later(batch)
        elif batch.status == Status.VALIDATING and batch.expires_at <= timezone.now():
            batch.advance(Status.FAILED, errors=_refused("batch_expired", "It expired.")["errors"])
