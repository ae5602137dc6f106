"""Starts batches."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from inference.errors import InvalidRequest, RateLimitExceeded
from inference.gateway.lines.seals import seal
from inference.operations.operation import Operation
from tenants.batches import jobs
from tenants.models import ApiKey, Batch, Purpose, Tenant

WINDOW = timedelta(hours=24)


def new_batch(
    key: ApiKey, operation: Operation, at: datetime | None = None, **fields: Any
) -> Batch:
    """A batch of the key, with these fields, which is created now or `at` this time, and not
    saved yet. Only consoles can seal it."""
    batch = batch_of(key, operation, at or timezone.now(), **fields)
    batch.seal = seal(settings.INTERNAL_TOKEN, batch.opening())
    return batch


def batch_of(key: ApiKey, operation: Operation, created_at: datetime, **fields: Any) -> Batch:
    """A batch of the key that is not saved yet, and was sealed earlier if `fields` say so."""
    return Batch(
        tenant=key.tenant,
        key=key,
        operation=operation.name,
        endpoint=operation.path,
        created_at=created_at,
        expires_at=created_at + WINDOW,
        **fields,
    )


def start(batch: Batch, tenant: Tenant) -> None:
    """Save a new batch, which is sealed, and have its file read; to be called in a transaction.

    Raises:
        RateLimitExceeded: the tenant has too many unfinished batches.
        InvalidRequest: the input file does not exist, or is not for batches.
    """
    under_way = tenant.batches.unfinished().count()
    if under_way >= settings.TENANT_BATCHES:
        raise RateLimitExceeded(
            f"Tenant `{tenant.slug}` has {under_way} unfinished batches; at most "
            f"{settings.TENANT_BATCHES} are allowed.",
            retry_after_s=60,
        )
    # Locked, so that it is not deleted meanwhile (`keeping.delete`).
    file = tenant.files.current().select_for_update().filter(pk=batch.input_file_id).first()
    if file is None:
        message = f"No such file: {batch.input_file_id[:64]}."
        raise InvalidRequest(message, param="input_file_id")
    if file.purpose != Purpose.BATCH:
        raise InvalidRequest(
            f"The file's purpose is `{file.purpose}`: it must be `batch`.", param="input_file_id"
        )
    batch.save(force_insert=True)
    jobs.read_later(batch)
