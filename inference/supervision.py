"""Tasks that run as long as their process: what ends one is logged, and it starts again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

log = structlog.get_logger(__name__)

BACKOFF_S = (0.5, 30.0)
"""Shortest and longest pause before it starts again; pauses double."""
STEADY_S = 60.0
"""After it ran this long the next pause is the shortest again."""


SAID_AGAIN_S = 0.1


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel these, and wait until they have ended.

    A cancellation may get lost in a library that is told at the same moment that what it waits for
    is there, so it is said again until it is heard.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        over, waiting = await asyncio.wait(waiting, timeout=SAID_AGAIN_S)
        await asyncio.gather(*over, return_exceptions=True)  # how they ended matters to nobody


async def supervised(
    name: str, work: Callable[[], Awaitable[object]], backoff_s: tuple[float, float] = BACKOFF_S
) -> None:
    """Run `work()` until it returns or this is cancelled; after an exception, run it anew."""
    pause_s, longest_s = backoff_s
    while True:
        began = time.monotonic()
        try:
            await work()
            return
        except Exception:
            if time.monotonic() - began >= STEADY_S:
                pause_s = backoff_s[0]
            log.exception("task_ended", task=name, again_in_s=pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)
