"""What this gateway's requests asked and were answered is written to PostgreSQL, of tenants that
keep that. What can't be written is lost: nobody waits for it."""

from __future__ import annotations

import asyncio

import structlog

from inference.errors import Unavailable
from inference.gateway.stored.content import Contents
from tenants.content.store import Item, PostgresContents
from tenants.naming import REQUEST

log = structlog.get_logger(__name__)

WRITE_S = 1.0
BATCH = 50
BATCH_BYTES = 4 << 20


async def keep(contents: Contents, kept: PostgresContents) -> None:
    """Write what was taken up since the last time, until cancelled."""
    while True:
        await asyncio.sleep(WRITE_S)
        await write(contents, kept)


async def write(contents: Contents, kept: PostgresContents) -> None:
    """Write what was taken up since the last time, and its request has ended."""
    while taken := contents.take(BATCH, BATCH_BYTES):
        items = {one.id: Item(one.tenant_id, REQUEST, one.id, one.at, one.text) for one in taken}
        try:
            await kept.keep(list(items.values()))
        except Unavailable as error:
            contents.dropped += len(taken)
            log.warning("content_not_written", requests=len(taken), error=str(error))
