"""Detects an engine whose core hangs while the agent lives: it answers no ping between steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inference.agent.engines.engine import Engine

PAUSE_S = 5.0
"""Seconds between two pings."""
LOOKS = 10
"""Polls of one ping within `patience_s`. Time in which this process itself did not run counts as
one poll, because the engine's answer may have arrived meanwhile and be unread."""


async def until_hung(engine: Engine, patience_s: float, is_busy: Callable[[], bool]) -> None:
    """Return once the engine is busy and has not answered for `patience_s`; never if that is 0.

    A step may take up to that long: the first one compiles, a long prompt is computed.
    """
    while patience_s > 0:
        if is_busy() and not await _answers(engine, patience_s):
            return
        await asyncio.sleep(min(PAUSE_S, patience_s))
    await asyncio.Event().wait()


async def _answers(engine: Engine, patience_s: float) -> bool:
    """Whether the engine answers in time. A ping that fails counts: that engine does not hang."""
    asked = asyncio.ensure_future(engine.ping())
    try:
        for _ in range(LOOKS):
            done, _ = await asyncio.wait((asked,), timeout=patience_s / LOOKS)
            if done:
                break
        return asked.done()
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
