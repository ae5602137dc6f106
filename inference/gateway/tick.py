"""Whether something had to be waited for."""

from __future__ import annotations

import asyncio


class Tick:
    """The turn of the event loop in which it was made.

    While it is not over nothing else has run in this process: what was looked up in it still holds,
    without another look-up.
    """

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.over = True
