"""The leases of batches and the storing of their answers, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from django.db import connection, transaction

from tenants.batch_states import RUNNING, Status
from tenants.batches import jobs
from tenants.batches.leases import LEASE_S, Lease, Lost, Result
from tenants.batches.sources import FileLines
from tenants.batches.writing import OK
from tenants.files import blobs
from tenants.models import Batch, BatchLine
from tenants.models.usage.sums import TOKENS

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
"""Answers in one statement, unless a single one is longer: PostgreSQL accepts no value of 1 GiB."""
RENEW = f"""
UPDATE tenants_batch SET leased_until = now() + interval '{LEASE_S} seconds',
    completed = completed + %s, failed = failed + %s,
    prompt_tokens = prompt_tokens + %s, cached_tokens = cached_tokens + %s,
    completion_tokens = completion_tokens + %s, reasoning_tokens = reasoning_tokens + %s
WHERE id = %s AND run = %s AND status = ANY(%s)
RETURNING status
"""
STORE = """
INSERT INTO tenants_batchline (batch_id, number, status_code, body, first_token_ms, total_ms)
SELECT %s, * FROM unnest(%s::int[], %s::int2[], %s::bytea[], %s::float8[], %s::float8[])
ON CONFLICT DO NOTHING RETURNING number
"""


@dataclass
class BatchLease(Lease):
    """The lease of a batch; `done` are the lines that already have answers."""

    MAX_LEASES = 32
    RENEW_S = 2.0

    file_id: str = ""
    done: Collection[int] = frozenset()

    @classmethod
    def claim(cls, most: int) -> Sequence[Self]:
        """See `Lease.claim`."""
        found: list[Self] = []
        while len(found) < most and (one := cls._claim_one()) is not None:
            found.append(one)
        return found

    @classmethod
    def _claim_one(cls) -> Self | None:
        with connection.cursor() as cursor:
            cursor.execute(CLAIM, [_RUNNING, _RUNNING])
            row = cursor.fetchone()
        if row is None:
            return None
        batch = Batch.objects.get(pk=row[0])
        numbers = BatchLine.objects.filter(batch=batch).values_list("number", flat=True)
        return cls(
            batch.opening(),
            batch.run,
            batch.expires_at,
            file_id=batch.input_file_id,
            done=frozenset(numbers),
        )

    def open(self) -> FileLines:
        """See `Lease.open`."""
        return FileLines(blobs.open(self.file_id), self.done)

    def renew(self, results: Sequence[Result] = ()) -> Status:
        """See `Lease.renew`."""
        with transaction.atomic(), connection.cursor() as cursor:
            new: set[int] = set()
            for some in _statements(results):
                rows = [(*one[:3], one.first_token_ms, one.total_ms) for one in some]
                cursor.execute(STORE, [self.id, *map(list, zip(*rows, strict=True))])
                new |= {number for (number,) in cursor.fetchall()}
            stored = [one for one in results if one.number in new]
            completed = sum(one.status == OK for one in stored)
            counts = [completed, len(stored) - completed]
            tokens = [sum(getattr(one.usage, kind) for one in stored) for kind in TOKENS]
            cursor.execute(RENEW, [*counts, *tokens, self.id, self.run, _RUNNING])
            row = cursor.fetchone()
            if row is None:
                raise Lost(self.id)
        return Status(row[0])

    def release(self, results: Sequence[Result] = ()) -> None:
        """See `Lease.release`."""
        with suppress(Lost):
            self.renew(results)
            Batch.objects.filter(pk=self.id, run=self.run).update(leased_until=None)

    def finish(self, ending: Status, code: str = "") -> None:
        """See `Lease.finish`; also queues the job that writes the output files. A batch that is
        cancelled meanwhile ends as cancelled only if answers are missing."""
        with transaction.atomic():
            found = Batch.objects.select_for_update().filter(pk=self.id, run=self.run)
            batch = found.filter(status__in=RUNNING).first()
            if batch is None:
                raise Lost(self.id)
            message = f"The batch's API key can no longer be used: `{code}`."
            errors = [{"code": "batch_ended", "message": message, "param": None, "line": None}]
            batch.advance(Status.FINALIZING, ending=ending, errors=errors if code else [])
            jobs.write_later(batch)


def _statements(results: Sequence[Result]) -> Iterator[Sequence[Result]]:
    """Split the answers into those that each statement stores."""
    first = size = 0
    for at, one in enumerate(results):
        if size and size + len(one.body) > STORE_BYTES:
            yield results[first:at]
            first, size = at, 0
        size += len(one.body)
    if first < len(results):
        yield results[first:]
