"""A feed holds what subscribers of one key are told, and works out what a reader has not seen yet.

A reader remembers only the sequence number of the last message it got, so nothing is queued for a
slow reader: it is told once that a state has changed rather than each time, or gets the events
since then, or learns that it missed some. The same holds for a reader that reconnects. Sequence
numbers increase over all feeds of a board, so no two messages share one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import msgspec

MAX_KEPT = 200
"""Events kept per feed; a reader that is further behind is told that it missed some."""
CHANGED = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class Key:
    """A topic for one audience; tenant 0 stands for the whole installation."""

    topic: str
    tenant_id: int = 0
    slug: str = ""
    """The tenant's slug, with which the LoRA names on engines begin."""
    audience: str = ""


class Feed(Protocol):
    """The state or the events of a key; `readers` are called when there is something new."""

    key: Key
    readers: set[Callable[[], None]]
    number: int
    """Sequence number of the latest message."""

    def since(self, number: int | None) -> msgspec.Raw | None:
        """What a reader that has seen everything up to `number` still lacks; None if nothing."""
        ...


class FeedState:
    """A feed that only says that a state has changed, not what it is now.

    Readers are told once more at the poll after a change: what renders the state also asks other
    processes, which may learn of the change a moment later.
    """

    def __init__(self, key: Key, numbers: count[int]) -> None:
        self.key, self.readers = key, set[Callable[[], None]]()
        self.number = next(numbers)
        self._numbers = numbers
        self._state: object = None
        self._settled = True

    def begin(self, state: object) -> None:
        """Set the initial state without telling anybody: the first reader is told anyway."""
        self._state = state

    def put(self, state: object) -> None:
        """Set the state; calls the readers if it changed now or at the previous poll."""
        changed = state != self._state
        if changed or not self._settled:
            self._state, self.number = state, next(self._numbers)
            tell(self)
        self._settled = not changed

    def since(self, number: int | None) -> msgspec.Raw | None:
        """CHANGED, unless the reader has already been told."""
        return None if number == self.number else CHANGED


class Events:
    """Marks of requests that ended; the last MAX_KEPT are kept.

    `data` is `{"ended": [mark, ...], "more": int, "missed": bool}`; `more` counts requests that
    ended without their marks being sent. A page that missed some, or has just been opened, reads
    them from the database.
    """

    def __init__(self, key: Key, numbers: count[int]) -> None:
        self.key, self.readers = key, set[Callable[[], None]]()
        self._numbers = numbers
        self._kept: deque[tuple[int, str | int]] = deque()
        self.number = self._floor = next(numbers)
        """Readers whose number is below the floor missed some events."""

    def add(self, ended: Sequence[str], more: int = 0) -> None:
        """Add requests that ended, after `more` others whose marks are not sent."""
        skipped: list[str | int] = [more] if more else []
        for one in skipped + list(ended):
            self.number = next(self._numbers)
            self._kept.append((self.number, one))
        while len(self._kept) > MAX_KEPT:
            self._floor, _ = self._kept.popleft()
        tell(self)

    def skip(self) -> None:
        """Record that some requests ended which are not known here."""
        self._kept.clear()
        self.number = self._floor = next(self._numbers)
        tell(self)

    def since(self, number: int | None) -> msgspec.Raw | None:
        """The events after `number`; None if there are none."""
        if number == self.number:
            return None
        missed = number is None or number < self._floor
        kept = [] if number is None or missed else [one for at, one in self._kept if at > number]
        ended = [one for one in kept if isinstance(one, str)]
        more = sum(one for one in kept if isinstance(one, int))
        return msgspec.Raw(msgspec.json.encode({"ended": ended, "more": more, "missed": missed}))


def tell(feed: Feed) -> None:
    """Call the readers of the feed."""
    for reader in tuple(feed.readers):
        reader()
