"""Answers of a server that finishes them whether or not somebody still reads.

The engine reads each to its end, also after its client has left, and until then the answer holds
one of the places that the server has. Otherwise a client who asks and leaves again and again would
fill the server's own queue, in which everybody else waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

EVENTS_AHEAD = 64
"""Events that are kept for a slow reader."""


class Finishing:
    """The answers that the server is at work on, at most `places`."""

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._reading: set[asyncio.Task[None]] = set()

    async def events(self, source: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The events of `source`, once there is a place. Leaving this does not end the source.

        Raises:
            InferenceError: what the source raises.
        """
        await self._places.acquire()
        answer = _Answer()
        task = asyncio.create_task(self._read(source, answer))
        self._reading.add(task)
        task.add_done_callback(self._ended)
        try:
            while (event := await answer.events.get()) is not None:
                yield event
            await task
        finally:
            answer.leave()

    async def close(self) -> None:
        """Leave all answers."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _read(self, source: AsyncGenerator[bytes, None], answer: _Answer) -> None:
        try:
            async with aclosing(source):
                async for event in source:
                    await answer.put(event)
        finally:
            self._places.release()
            await answer.put(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        if not task.cancelled():
            task.exception()  # of an answer that was left nobody else asks


class _Answer:
    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(EVENTS_AHEAD)
        self.left = False

    async def put(self, event: bytes | None) -> None:
        if not self.left:
            await self.events.put(event)

    def leave(self) -> None:
        """Nobody reads further events."""
        self.left = True
        while not self.events.empty():  # lets a `put` that waits go on
            self.events.get_nowait()
