"""Writes prompts and answers of this gateway's requests to PostgreSQL, for tenants that store them.
What can't be written is lost, because no request waits for it."""

from __future__ import annotations

import asyncio

import structlog

from inference.errors import Unavailable
from inference.gateway.measuring.content import RequestContents
from tenants.content.store import ContentItem, PostgresContents
from tenants.naming import REQUEST

log = structlog.get_logger(__name__)

WRITE_S = 1.0
BATCH = 50
BATCH_BYTES = 4 << 20


async def keep(contents: RequestContents, kept: PostgresContents) -> None:
    """Periodically write the content collected since the last time, until cancelled."""
    while True:
        await asyncio.sleep(WRITE_S)
        await write(contents, kept)


async def write(contents: RequestContents, kept: PostgresContents) -> None:
    """Write the collected content of requests that have ended."""
    while taken := contents.take(BATCH, BATCH_BYTES):
        items = {
            one.id: ContentItem(one.tenant_id, REQUEST, one.id, one.at, one.text) for one in taken
        }
        try:
            await kept.keep(list(items.values()))
        except Unavailable as error:
            contents.dropped += len(taken)
            log.warning("content_not_written", requests=len(taken), error=str(error))
