"""Follows how many of the day's tokens are left for overflow engines, by the ledger's count."""

from __future__ import annotations

import asyncio
import time

import structlog

from inference.errors import Unavailable
from inference.gateway.hub import Hub
from tenants.directory.registry import DirectoryRegistry

log = structlog.get_logger(__name__)

FOLLOW_S = 5.0


async def follow(hub: Hub, registry: DirectoryRegistry, tokens_a_day: int) -> None:
    """While overflow engines are connected, periodically read the count, until cancelled. When it
    can't be read they get nothing."""
    while True:
        if hub.has_overflow:
            try:
                left = tokens_a_day - await registry.overflowed_today()
                hub.overflow.note_left(left, time.monotonic())
            except Unavailable as error:
                hub.overflow.note_left(0, time.monotonic())
                log.warning("overflow_not_known", error=str(error))
        await asyncio.sleep(FOLLOW_S)
