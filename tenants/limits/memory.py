"""Counters in this process: for a single gateway, or for each gateway while Redis is down."""

from __future__ import annotations

import time
from collections.abc import Callable

from tenants.limits.commands import AnyAnswer, AnyCommand
from tenants.limits.kinds import KINDS, Kinds
from tenants.limits.state import LimitState


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class MemoryStore:
    """`commands.Store` over a LimitState. It never awaits, so each command is atomic."""

    def __init__(self, clock: Callable[[], int] = now_ms, kinds: Kinds = KINDS) -> None:
        """`clock` gives unix time in milliseconds."""
        self._state = LimitState(kinds)
        self._clock = clock

    async def run(self, *commands: AnyCommand) -> list[AnyAnswer]:
        """Never raises."""
        return list(map(self.do, commands))

    def do(self, command: AnyCommand) -> AnyAnswer:
        """Execute one command synchronously."""
        return self._state.run(command, self._clock())

    async def close(self) -> None:
        """Does nothing."""
