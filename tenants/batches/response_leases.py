"""The leases of background responses, in PostgreSQL.

A worker only knows that a response is to be run. The gateway that it asks reads the request and
stores the answer (`inference.gateway.lines.background`), so this module writes only which worker
has the response, and how it ended if no gateway could store that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from django.db import connection, models
from django.utils import timezone

from inference.errors import GenerationTimeout, InferenceError
from inference.gateway.lines.frames import OpenBatch
from inference.operations.responses.framing import FAILED, IN_PROGRESS, LIVE
from inference.operations.responses.responses import RESPONSES
from tenants.batch_states import Status
from tenants.batches.leases import LEASE_S, Lease, Lost, Result
from tenants.batches.sources import OneLine
from tenants.batches.writing import OK
from tenants.models.background import BackgroundResponse

TENANT_AT_ONCE = 32
"""Responses of one tenant that run at a time; the others wait."""

CLAIM = f"""
WITH running AS (
    SELECT tenant_id, count(*) AS count FROM tenants_backgroundresponse
    WHERE status = ANY(%(live)s) AND leased_until > now() GROUP BY tenant_id
), next AS (
    SELECT id, created_at, coalesce(running.count, 0)
        + row_number() OVER (PARTITION BY one.tenant_id ORDER BY created_at, id) AS place
    FROM tenants_backgroundresponse AS one LEFT JOIN running USING (tenant_id)
    WHERE status = ANY(%(live)s) AND (leased_until IS NULL OR leased_until <= now())
    ORDER BY place, created_at LIMIT %(most)s
), free AS (
    SELECT one.id FROM tenants_backgroundresponse AS one JOIN next USING (id)
    WHERE next.place <= {TENANT_AT_ONCE} AND status = ANY(%(live)s)
      AND (leased_until IS NULL OR leased_until <= now())
    FOR UPDATE OF one SKIP LOCKED
)
UPDATE tenants_backgroundresponse AS one
SET run = run + 1, leased_until = now() + interval '{LEASE_S} seconds'
FROM free WHERE one.id = free.id
RETURNING one.id, key_id, created_at, seal, run, expires_at, size_bytes
"""
RENEW = f"""
UPDATE tenants_backgroundresponse
SET leased_until = now() + interval '{LEASE_S} seconds',
    status = CASE WHEN %(begun)s THEN '{IN_PROGRESS}' ELSE status END
WHERE id = %(id)s AND run = %(run)s AND status = ANY(%(live)s) AND EXISTS (
    SELECT 1 FROM tenants_storedcontent c JOIN tenants_contentkey k ON k.id = c.content_key_id
    WHERE c.id = content_id AND c.expires_at > now() AND k.destroyed_at IS NULL)
"""
"""Matches no row once the response's content can't be read any more."""
_LIVE = [*LIVE]


@dataclass
class ResponseLease(Lease):
    """The lease of a background response."""

    MAX_LEASES = 128
    RENEW_S = 1.0

    size_bytes: int = 0

    @classmethod
    def claim(cls, most: int) -> Sequence[Self]:
        """See `Lease.claim`."""
        if most <= 0:
            return []
        with connection.cursor() as cursor:
            cursor.execute(CLAIM, {"live": _LIVE, "most": most})
            rows = cursor.fetchall()
        return [
            cls(
                OpenBatch(id, key_id, created_at.timestamp(), RESPONSES.name, seal),
                run,
                expires_at,
                size_bytes=size_bytes,
            )
            for id, key_id, created_at, seal, run, expires_at, size_bytes in rows
        ]

    def open(self) -> OneLine:
        """See `Lease.open`."""
        return OneLine(self.size_bytes)

    def renew(self, results: Sequence[Result] = ()) -> Status:
        """See `Lease.renew`. Writes only failures: the gateway has stored any other answer."""
        for one in results:
            if one.status != OK:
                self._fail(one.code)
        if results:
            return Status.IN_PROGRESS
        values: dict[str, Any] = {
            "begun": self.begun,
            "id": self.id,
            "run": self.run,
            "live": _LIVE,
        }
        with connection.cursor() as cursor:
            cursor.execute(RENEW, values)
            if not cursor.rowcount:
                raise Lost(self.id)
        return Status.IN_PROGRESS

    def release(self, results: Sequence[Result] = ()) -> None:
        """See `Lease.release`."""
        if results:
            self.renew(results)
        self._own().update(leased_until=None)

    def finish(self, ending: Status, code: str = "") -> None:
        """See `Lease.finish`. A response that has ended already, as most have, is unchanged."""
        if ending is Status.EXPIRED:
            code = GenerationTimeout.code
        self._fail(code)

    def _fail(self, code: str) -> None:
        self._own().update(status=FAILED, code=code or InferenceError.code, leased_until=None)

    def _own(self) -> models.QuerySet[BackgroundResponse]:
        return BackgroundResponse.objects.filter(pk=self.id, run=self.run, status__in=LIVE)


def expire() -> None:
    """Mark as failed the responses that were not answered in time."""
    over = BackgroundResponse.objects.filter(status__in=LIVE, expires_at__lte=timezone.now())
    over.update(status=FAILED, code=GenerationTimeout.code, leased_until=None)
