"""Iterations of the event loop: how much of a body one handles, and whether another has begun.

All streams wait while an iteration runs, and one pass over a body of 8 MiB takes several
milliseconds. So each pass has an iteration of its own, or several.
"""

from __future__ import annotations

import asyncio

from inference.operations.bodies.shape import PART_BYTES, BodyShape

LARGE_BYTES = 1 << 20
"""Size from which a body is handled in iterations of its own."""


async def count(body: bytes, shape: BodyShape) -> None:
    """Have `shape` count a body, or a part of one, PART_BYTES in each iteration.

    Raises:
        InvalidRequest: `shape` refuses it.
    """
    for start in range(0, len(body), PART_BYTES):
        if start:
            await asyncio.sleep(0)
        shape.feed(body[start : start + PART_BYTES])


async def pause(size: int) -> None:
    """End this iteration if it has handled a large body, of `size` bytes."""
    if size >= LARGE_BYTES:
        await asyncio.sleep(0)


class LoopIteration:
    """The iteration of the event loop in which the object was made.

    Until it is `over`, no other task has run in this process, so the results of look-ups made in it
    still hold.
    """

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.is_over = True
