"""Finds an engine whose core hangs while its agent lives: it answers nothing between its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inference.agent.engines.engine import Engine

PAUSE_S = 5.0
"""Between two questions."""
LOOKS = 10
"""During the patience. Time in which this process itself did not run counts as one look, because
the engine's answer of that time may lie there unread."""


async def until_hung(engine: Engine, patience_s: float, is_busy: Callable[[], bool]) -> None:
    """Return once the engine has been busy and has answered nothing for so long; never if 0.

    A step may take that long: the first one compiles, a long prompt is computed.
    """
    while patience_s > 0:
        if is_busy() and not await _answers(engine, patience_s):
            return
        await asyncio.sleep(min(PAUSE_S, patience_s))
    await asyncio.Event().wait()


async def _answers(engine: Engine, patience_s: float) -> bool:
    """Whether the engine answers in time. One that fails instead does not hang."""
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
