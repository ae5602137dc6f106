"""Which worker has a batch, and what it writes of it: one statement each, in PostgreSQL.

A lease has a number (`Batch.run`), and every write asks whether it is still the last one: whoever
was slow and lost the batch writes nothing, and who has it now knows all that was written before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import connection, transaction
from django.utils import timezone

from inference.gateway.lines.frames import Open
from inference.link.wire import Usage
from tenants.batches import jobs
from tenants.batches.states import RUNNING, Status
from tenants.batches.writing import OK
from tenants.models import Batch, BatchLine
from tenants.models.usage.ledger import TOKENS

LEASE_S = 15
TENANT_AT_ONCE = 4
"""Batches of one tenant that run at a time; the others wait."""

_RUNNING = sorted(RUNNING)
CLAIM = f"""
UPDATE tenants_batch SET run = run + 1, leased_until = now() + interval '{LEASE_S} seconds'
WHERE id = (
    SELECT id FROM tenants_batch AS one
    CROSS JOIN LATERAL (
        SELECT count(*) AS running FROM tenants_batch AS other
        WHERE other.tenant_id = one.tenant_id AND other.ended_at IS NULL
          AND other.status = ANY(%s) AND other.leased_until > now()
    ) AS of_tenant
    WHERE one.ended_at IS NULL AND one.status = ANY(%s)
      AND (one.leased_until IS NULL OR one.leased_until <= now())
      AND of_tenant.running < {TENANT_AT_ONCE}
    ORDER BY of_tenant.running, one.created_at
    FOR UPDATE OF one SKIP LOCKED LIMIT 1)
RETURNING id
"""
STORE_BYTES = 16 << 20
"""Of answers in one statement, unless one is longer: PostgreSQL takes no value of 1 GiB."""
RENEW = f"""
UPDATE tenants_batch SET leased_until = now() + interval '{LEASE_S} seconds',
    completed = completed + %s, failed = failed + %s,
    prompt_tokens = prompt_tokens + %s, cached_tokens = cached_tokens + %s,
    completion_tokens = completion_tokens + %s, reasoning_tokens = reasoning_tokens + %s
WHERE id = %s AND run = %s AND status = ANY(%s)
RETURNING status
"""
STORE = """
INSERT INTO tenants_batchline (batch_id, number, status_code, body)
SELECT %s, * FROM unnest(%s::int[], %s::int2[], %s::bytea[])
ON CONFLICT DO NOTHING RETURNING number
"""


class Lost(Exception):
    """Another worker has the batch, or it has ended."""


class Result(NamedTuple):
    """The answer to a line, and what is billed of it."""

    number: int
    status: int
    body: bytes
    usage: Usage = Usage()


@dataclass(frozen=True)
class Lease:
    """A batch that this worker has; `done` are the lines that have answers."""

    opening: Open
    file_id: str
    run: int
    expires_at: datetime
    done: frozenset[int]

    @property
    def id(self) -> str:
        return self.opening.batch

    @property
    def expired(self) -> bool:
        return timezone.now() >= self.expires_at


def claim() -> Lease | None:
    """A batch that nobody has, if there is one: the oldest of the tenant that has the fewest at
    work."""
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, [_RUNNING, _RUNNING])
        row = cursor.fetchone()
    if row is None:
        return None
    batch = Batch.objects.get(pk=row[0])
    numbers = BatchLine.objects.filter(batch=batch).values_list("number", flat=True)
    return Lease(
        batch.opening(), batch.input_file_id, batch.run, batch.expires_at, frozenset(numbers)
    )


def renew(lease: Lease, results: Sequence[Result] = ()) -> Status:
    """Write these answers and have the batch for another LEASE_S; the state that it is in.

    Raises:
        Lost: nothing was written.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        new: set[int] = set()
        for some in _statements(results):
            numbers, statuses, bodies, _ = ([*column] for column in zip(*some, strict=True))
            cursor.execute(STORE, [lease.id, numbers, statuses, bodies])
            new |= {number for (number,) in cursor.fetchall()}
        stored = [one for one in results if one.number in new]
        completed = sum(one.status == OK for one in stored)
        counts = [completed, len(stored) - completed]
        tokens = [sum(getattr(one.usage, kind) for one in stored) for kind in TOKENS]
        cursor.execute(RENEW, [*counts, *tokens, lease.id, lease.run, _RUNNING])
        row = cursor.fetchone()
        if row is None:
            raise Lost(lease.id)
    return Status(row[0])


def _statements(results: Sequence[Result]) -> Iterator[Sequence[Result]]:
    """The answers that are stored in each statement."""
    first = size = 0
    for at, one in enumerate(results):
        if size and size + len(one.body) > STORE_BYTES:
            yield results[first:at]
            first, size = at, 0
        size += len(one.body)
    if first < len(results):
        yield results[first:]


def release(lease: Lease, results: Sequence[Result] = ()) -> None:
    """Write these answers; another worker may have the batch at once. Nothing if one has it."""
    with suppress(Lost):
        renew(lease, results)
        Batch.objects.filter(pk=lease.id, run=lease.run).update(leased_until=None)


def finish(lease: Lease, ending: Status, error: str = "") -> None:
    """No more lines are run: have the answers written down. An `error` is told of the batch. One
    that was asked to be cancelled meanwhile ends so only where lines are missing.

    Raises:
        Lost: nothing was changed.
    """
    with transaction.atomic():
        found = Batch.objects.select_for_update().filter(pk=lease.id, run=lease.run)
        batch = found.filter(status__in=RUNNING).first()
        if batch is None:
            raise Lost(lease.id)
        errors = [{"code": "batch_ended", "message": error, "param": None, "line": None}]
        batch.advance(Status.FINALIZING, ending=ending, errors=errors if error else [])
        jobs.write_later(batch)
