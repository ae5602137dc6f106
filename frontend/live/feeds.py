"""What is told under one key, and how much of it a reader lacks.

A reader only remembers the number of what it was told last, so nothing waits for a slow one: it
finds the newest state instead of each, or the events since, or that it missed some. The same goes
for one that comes back. Numbers grow over all feeds of a board: none means two things.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import msgspec

MAX_KEPT = 200
"""Events; a reader that is further behind is told that it missed some."""


@dataclass(frozen=True, slots=True)
class Key:
    """A topic as one audience sees it; tenant 0 is the whole installation."""

    topic: str
    tenant_id: int = 0
    query: str = ""
    audience: str = ""


class Feed(Protocol):
    """State or events of a key; `readers` are called when there is something new."""

    key: Key
    readers: set[Callable[[], None]]
    number: int
    """Of what came last."""

    def since(self, number: int | None) -> msgspec.Raw | None:
        """What a reader that has come to `number` lacks; None if nothing."""
        ...


class State:
    """Something that has a present state; what it was before interests nobody."""

    def __init__(self, key: Key, numbers: count[int]) -> None:
        self.key, self.readers = key, set[Callable[[], None]]()
        self.number = next(numbers)
        self._numbers = numbers
        self._data: msgspec.Raw | None = None

    @property
    def known(self) -> bool:
        """Whether it was ever sampled."""
        return self._data is not None

    def put(self, state: Any) -> None:
        """The state is this now; readers are called if that is new."""
        data = _json(state)
        if data != self._data:
            self._data, self.number = data, next(self._numbers)
            tell(self)

    def since(self, number: int | None) -> msgspec.Raw | None:
        """The present state, unless that is what the reader has."""
        return None if number == self.number else self._data


class Events:
    """Things that happen; the last MAX_KEPT are kept. `data` is `{"rows": [...], "missed": bool}`:
    a page that missed some, or has just come, reads them where they are stored."""

    def __init__(self, key: Key, numbers: count[int]) -> None:
        self.key, self.readers = key, set[Callable[[], None]]()
        self._numbers = numbers
        self._kept: deque[tuple[int, msgspec.Raw]] = deque()
        self.number = self._floor = next(numbers)
        """Whoever has come less far than the floor missed some."""

    def add(self, rows: Sequence[Any]) -> None:
        """These happened."""
        for row in rows:
            self.number = next(self._numbers)
            self._kept.append((self.number, _json(row)))
        while len(self._kept) > MAX_KEPT:
            self._floor, _ = self._kept.popleft()
        tell(self)

    def skip(self) -> None:
        """Some happened that nobody was told of."""
        self._kept.clear()
        self.number = self._floor = next(self._numbers)
        tell(self)

    def since(self, number: int | None) -> msgspec.Raw | None:
        """The rows after that number, unless there are none."""
        if number == self.number:
            return None
        missed = number is None or number < self._floor
        rows = [] if number is None else [row for at, row in self._kept if at > number]
        return msgspec.Raw(msgspec.json.encode({"rows": [] if missed else rows, "missed": missed}))


def _json(value: Any) -> msgspec.Raw:
    # Not msgspec's, which takes no subclass of str: templates render to one.
    return msgspec.Raw(json.dumps(value, separators=(",", ":")).encode())


def tell(feed: Feed) -> None:
    """Call the readers of the feed."""
    for reader in tuple(feed.readers):
        reader()
