"""Stored responses, for gateways: a kind of stored content. A background response also has a row
with its status, which is deleted with its content."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from inference.errors import RateLimitExceeded
from inference.interfaces.stored import EndedResponse, Queued, ResponseStatus
from inference.operations.responses.framing import CANCELLED, LIVE, QUEUED
from tenants.content.sealing import Unreadable
from tenants.content.store import ContentItem, PostgresContents
from tenants.naming import RESPONSE

log = structlog.get_logger(__name__)

MOST_BYTES = 64 << 20
"""Total size of one tenant's request bodies that wait to be run in the background, or run."""
WINDOW = timedelta(hours=24)
"""Time within which a background response is run, as for a batch."""
RETRY_S = 10.0

LOCK = "SELECT 1 FROM tenants_tenant WHERE id = %(tenant)s FOR NO KEY UPDATE"
"""Makes a concurrent request of the tenant wait, so that it counts this one."""
BEFORE = """
SELECT c.name AS id
FROM tenants_backgroundresponse b JOIN tenants_storedcontent c ON c.id = b.content_id
WHERE b.key_id = %(key)s AND b.once = %(once)s AND %(once)s <> ''
  AND b.created_at > now() - interval '1 day'
"""
WAITING = """
SELECT count(*)::int AS responses, coalesce(sum(size_bytes), 0)::bigint AS bytes
FROM tenants_backgroundresponse WHERE tenant_id = %(tenant)s AND status = ANY(%(live)s)
"""
QUEUE = f"""
WITH kept AS (
    INSERT INTO tenants_storedcontent (tenant_id, kind, name, content_key_id, at, expires_at, data)
    SELECT k.tenant_id, '{RESPONSE}', %(name)s, k.id, %(at)s,
           %(at)s + make_interval(days => t.content_days), %(data)s
    FROM tenants_contentkey k JOIN tenants_tenant t ON t.id = k.tenant_id AND t.content_days > 0
    CROSS JOIN ({WAITING}) AS waiting
    WHERE k.id = %(content_key)s AND k.destroyed_at IS NULL AND NOT EXISTS ({BEFORE})
      AND waiting.responses < %(most)s AND waiting.bytes + %(size)s <= {MOST_BYTES}
    RETURNING id
)
INSERT INTO tenants_backgroundresponse (id, tenant_id, key_id, content_id, status, size_bytes, seal,
                                        once, created_at, expires_at)
SELECT %(id)s, %(tenant)s, %(key)s, kept.id, '{QUEUED}', %(size)s, %(seal)s, %(once)s, %(at)s,
       %(expires_at)s
FROM kept
"""
OF_NAME = f"""
SELECT b.id FROM tenants_backgroundresponse b JOIN tenants_storedcontent c ON c.id = b.content_id
WHERE c.tenant_id = %(tenant)s AND c.kind = '{RESPONSE}' AND c.name = %(name)s
"""
STANDING = f"SELECT status, code FROM tenants_backgroundresponse WHERE id IN ({OF_NAME})"
BEGIN = f"""
UPDATE tenants_backgroundresponse SET turn = %(turn)s
WHERE id IN ({OF_NAME}) AND status = ANY(%(live)s) AND turn <= %(turn)s
"""
END = f"""
WITH own AS (
    SELECT id, content_id FROM tenants_backgroundresponse
    WHERE id IN ({OF_NAME}) AND status = ANY(%(live)s) AND turn = %(turn)s FOR UPDATE
), kept AS (
    UPDATE tenants_storedcontent c SET data = %(data)s FROM own, tenants_contentkey k
    WHERE c.id = own.content_id AND c.content_key_id = k.id AND k.id = %(content_key)s
      AND k.destroyed_at IS NULL
    RETURNING own.id
)
UPDATE tenants_backgroundresponse AS one SET status = %(status)s, leased_until = NULL
FROM kept WHERE one.id = kept.id
"""
"""`own` locks the row, so that a concurrent cancellation finds that the response has ended."""
CANCEL = f"""
UPDATE tenants_backgroundresponse SET status = '{CANCELLED}', leased_until = NULL
WHERE id IN ({OF_NAME}) AND status = ANY(%(live)s)
"""
_LIVE = [*LIVE]


@dataclass(frozen=True, slots=True)
class _Id:
    id: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    responses: int
    bytes: int


class PostgresResponses:
    """Implements `interfaces.stored.StoredResponses`, whose docstrings apply."""

    def __init__(self, contents: PostgresContents, *, most: int) -> None:
        """`most` bounds how many responses of one tenant run in the background or wait to."""
        self._contents, self._most = contents, most

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """See `StoredResponses.keep`."""
        item = ContentItem(tenant_id, RESPONSE, id, time.time(), record)
        return await self._contents.keep([item]) == 1

    async def read(self, tenant_id: int, id: str) -> bytes | None:
        """See `StoredResponses.read`. Also None if no master key decrypts it."""
        try:
            return await self._contents.read(tenant_id, RESPONSE, id)
        except Unreadable:
            log.error("response_unreadable", tenant_id=tenant_id)
            return None

    async def delete(self, tenant_id: int, id: str) -> bool:
        """See `StoredResponses.delete`."""
        return await self._contents.delete(tenant_id, RESPONSE, id)

    # --- in the background -----------------------------------------------------------------------

    async def queue(self, queued: Queued) -> str | None:
        """See `StoredResponses.queue`."""
        item = ContentItem(queued.tenant_id, RESPONSE, queued.id, 0.0, queued.record)
        if (sealed := await self._contents.sealed(item)) is None:
            return None
        values = {
            "tenant": queued.tenant_id,
            "key": queued.key_id,
            "id": queued.batch,
            "name": queued.id,
            "at": queued.created_at,
            "expires_at": queued.created_at + WINDOW,
            "seal": queued.seal,
            "once": queued.once,
            "content_key": sealed.key_id,
            "data": sealed.data,
            "size": len(queued.record),
            "most": self._most,
            "live": _LIVE,
        }
        if await self._contents.execute_all([LOCK, QUEUE], values):
            return queued.id
        for before in await self._contents.rows(_Id, BEFORE, values):
            return before.id
        await self._check_room(values)
        return None  # the tenant's key was destroyed just now

    async def _check_room(self, values: dict[str, Any]) -> None:
        (waiting,) = await self._contents.rows(_Waiting, WAITING, values)
        if waiting.responses >= self._most:
            raise RateLimitExceeded(
                f"This tenant has {waiting.responses} unfinished background responses; at "
                f"most {self._most} are allowed.",
                retry_after_s=RETRY_S,
            )
        if waiting.bytes + values["size"] > MOST_BYTES:
            raise RateLimitExceeded(
                f"The unfinished background responses of this tenant have {waiting.bytes} "
                f"bytes and this one has {values['size']}; together at most {MOST_BYTES} "
                "are allowed.",
                retry_after_s=RETRY_S,
            )

    async def status(self, tenant_id: int, id: str) -> ResponseStatus | None:
        """See `StoredResponses.status`."""
        rows = await self._contents.rows(ResponseStatus, STANDING, _named(tenant_id, id))
        return rows[0] if rows else None

    async def begin(self, tenant_id: int, id: str, turn: int) -> bytes | None:
        """See `StoredResponses.begin`."""
        values = _named(tenant_id, id) | {"turn": turn, "live": _LIVE}
        if not await self._contents.execute(BEGIN, values):
            return None
        return await self.read(tenant_id, id)

    async def end(self, tenant_id: int, id: str, turn: int, ended: EndedResponse) -> bool:
        """See `StoredResponses.end`."""
        item = ContentItem(tenant_id, RESPONSE, id, 0.0, ended.record)
        if (sealed := await self._contents.sealed(item)) is None:
            return False
        values = _named(tenant_id, id) | {
            "turn": turn,
            "status": ended.status,
            "content_key": sealed.key_id,
            "data": sealed.data,
            "live": _LIVE,
        }
        return await self._contents.execute(END, values) == 1

    async def cancel(self, tenant_id: int, id: str) -> None:
        """See `StoredResponses.cancel`."""
        await self._contents.execute(CANCEL, _named(tenant_id, id) | {"live": _LIVE})


def _named(tenant_id: int, id: str) -> dict[str, Any]:
    return {"tenant": tenant_id, "name": id}
