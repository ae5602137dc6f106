"""Detects whether the event loop has run anything else since a look-up."""

from __future__ import annotations

import asyncio


class Tick:
    """The iteration of the event loop in which the object was made.

    Until it is `over`, no other task has run in this process, so the results of look-ups made in it
    still hold.
    """

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.over = True
