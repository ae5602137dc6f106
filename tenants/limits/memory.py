"""Counters in this process: of the only gateway, or of each one while Redis is away."""

from __future__ import annotations

import time
from collections.abc import Callable

from tenants.limits.book import Book
from tenants.limits.commands import AnyAnswer, AnyCommand


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class MemoryStore:
    """`commands.Store` over a Book. Nothing in it waits, so each command is atomic."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        """`clock` gives unix time in milliseconds."""
        self._book = Book()
        self._clock = clock

    async def run(self, *commands: AnyCommand) -> list[AnyAnswer]:
        """Never raises."""
        return list(map(self.do, commands))

    def do(self, command: AnyCommand) -> AnyAnswer:
        """The same without a coroutine."""
        return self._book.run(command, self._clock())

    async def close(self) -> None:
        """Nothing to let go of."""
