"""`/v1/batches` as in OpenAI's API, for keys: a file of requests that are answered within a day.

Batches are created and shown here; workers read their files, run their lines and write the answers
(`tenants.batches`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest

from inference.errors import (
    IdempotencyKeyReused,
    InvalidRequest,
    NotFound,
)
from inference.gateway.idempotency import name_of
from inference.operations.operation import Operation
from inference.operations.registry import OPERATIONS
from tenants.adapters import quota
from tenants.api.endpoints.openai import files
from tenants.api.openai import listing
from tenants.api.openai.views import Query, body_of, keyed_by_method
from tenants.batch_states import Status
from tenants.batches.starting import new_batch, start
from tenants.models import ApiKey, Batch

MAX_PAGE = 100
MAX_PAIRS, MAX_NAME, MAX_VALUE = 16, 64, 512
"""Bounds of metadata, as in OpenAI's API."""


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None
    output_expires_after: files.Expiry | None = None


def shown(batch: Batch) -> dict[str, Any]:
    """The batch as clients see it."""
    ended = {batch.status: batch.ended_at}
    times = {
        "created_at": batch.created_at,
        "in_progress_at": batch.in_progress_at,
        "expires_at": batch.expires_at,
        "finalizing_at": batch.finalizing_at,
        "completed_at": ended.get(Status.COMPLETED),
        "failed_at": ended.get(Status.FAILED),
        "expired_at": ended.get(Status.EXPIRED),
        "cancelling_at": batch.cancelling_at,
        "cancelled_at": ended.get(Status.CANCELLED),
    }
    return {
        "id": batch.pk,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        **{name: None if at is None else int(at.timestamp()) for name, at in times.items()},
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.prompt_tokens + batch.completion_tokens,
        },
        "metadata": batch.metadata,
    }


def found(batches: QuerySet[Batch], id: str) -> Batch:
    """The batch of this id among these.

    Raises:
        NotFound: there is none.
    """
    batch = None if "\0" in id else batches.filter(pk=id).first()
    if batch is None:
        raise NotFound(f"No batch found with id '{id[:64]}'.")
    return batch


def _list(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    query = Query(request.GET, listing.PARAMETERS)
    return listing.page(key.tenant.batches.all(), query, shown, most=MAX_PAGE)


def _create(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    wanted = body_of(request, _Wanted)
    operation = operation_at(wanted.endpoint)
    check_metadata(wanted.metadata or {})
    batch = new_batch(
        key,
        operation,
        input_file_id=wanted.input_file_id.replace("\0", ""),
        idempotency_key=idempotency_key(request),
        metadata=wanted.metadata,
        output_seconds=_output_seconds(wanted.output_expires_after),
    )
    with transaction.atomic():
        tenant = quota.locked(key.tenant_id)  # so that a concurrent request counts this batch
        if (before := _made_before(batch)) is not None:
            return shown(before)
        start(batch, tenant)
    return shown(batch)


def idempotency_key(request: HttpRequest) -> str:
    """The request's Idempotency-Key; empty if it has none."""
    header = request.headers.get("idempotency-key")
    return "" if header is None else name_of(header.encode("latin-1"))


def _made_before(batch: Batch) -> Batch | None:
    """The batch that was made under the same idempotency key, if there is one.

    Raises:
        IdempotencyKeyReused: it was made by a different request.
    """
    name = batch.idempotency_key
    before = Batch.objects.filter(key=batch.key, idempotency_key=name).first() if name else None
    if before is not None and not before.asks_as(batch):
        raise IdempotencyKeyReused("This Idempotency-Key was already used with a different body.")
    return before


def operation_at(endpoint: str) -> Operation:
    """The operation of the lines.

    Raises:
        InvalidRequest: batches have none at this path.
    """
    operation = OPERATIONS.at(endpoint)
    if operation is None or not operation.in_batches:
        there = ", ".join(one.path for one in OPERATIONS if one.in_batches)
        raise InvalidRequest(
            f"`endpoint` is {endpoint[:64]!r}: it must be one of {there}.", param="endpoint"
        )
    return operation


def check_metadata(metadata: dict[str, str]) -> None:
    """Raises InvalidRequest if it is larger than OpenAI's API allows."""
    if len(metadata) > MAX_PAIRS:
        message = f"`metadata` has {len(metadata)} pairs; at most {MAX_PAIRS} are allowed."
        raise InvalidRequest(message, param="metadata")
    for name, value in metadata.items():
        if len(name) > MAX_NAME or len(value) > MAX_VALUE or "\0" in name + value:
            raise InvalidRequest(
                f"In `metadata`, a name can have at most {MAX_NAME} characters and a value "
                f"{MAX_VALUE}, without null characters.",
                param="metadata",
            )


def _output_seconds(expiry: files.Expiry | None) -> int:
    if expiry is None:
        return files.MOST_S
    return files.kept_seconds(expiry.seconds, "output_expires_after.seconds")


def _retrieve(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    return shown(found(key.tenant.batches.all(), id))


def _cancel(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    batch = found(key.tenant.batches.all(), id)
    batch.cancel()
    return shown(batch)


batches = keyed_by_method(files.USERS, GET=_list, POST=_create)
batch = keyed_by_method(files.USERS, GET=_retrieve)
cancel = keyed_by_method(files.USERS, POST=_cancel)
