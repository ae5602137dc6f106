"""What is told under one key, and how much of it a reader lacks.

A reader only remembers the number of what it was told last, so nothing waits for a slow one: it
hears once that a state has changed instead of each time, or the events since, or that it missed
some. The same goes for one that comes back. Numbers grow over all feeds of a board: none means two
things.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import msgspec

MAX_KEPT = 200
"""Events; a reader that is further behind is told that it missed some."""
CHANGED = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class Key:
    """A topic as one audience is told of it; tenant 0 is the whole installation."""

    topic: str
    tenant_id: int = 0
    slug: str = ""
    """The tenant's, as engines name what they hold."""
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
    """Something that has a present state, of which only is told that it is another one.

    It is told once more at the next look: whoever renders it asks other processes too, which may
    hear of it a moment later.
    """

    def __init__(self, key: Key, numbers: count[int]) -> None:
        self.key, self.readers = key, set[Callable[[], None]]()
        self.number = next(numbers)
        self._numbers = numbers
        self._state: object = None
        self._settled = True

    def begin(self, state: object) -> None:
        """The state is this as the first reader comes, who is told anyway."""
        self._state = state

    def put(self, state: object) -> None:
        """The state is this now; readers are called if that is new, or was at the last look."""
        changed = state != self._state
        if changed or not self._settled:
            self._state, self.number = state, next(self._numbers)
            tell(self)
        self._settled = not changed

    def since(self, number: int | None) -> msgspec.Raw | None:
        """That it changed, unless the reader knows."""
        return None if number == self.number else CHANGED


class Events:
    """Requests that ended, by their marks; the last MAX_KEPT are kept.

    `data` is `{"ended": [mark, ...], "more": int, "missed": bool}`: how many others there were is
    told without their marks; a page that missed some, or has just come, reads them where they are
    stored.
    """

    def __init__(self, key: Key, numbers: count[int]) -> None:
        self.key, self.readers = key, set[Callable[[], None]]()
        self._numbers = numbers
        self._kept: deque[tuple[int, str | int]] = deque()
        self.number = self._floor = next(numbers)
        """Whoever has come less far than the floor missed some."""

    def add(self, ended: Sequence[str], more: int = 0) -> None:
        """These ended, and so many others before them."""
        for one in (more, *ended) if more else ended:
            self.number = next(self._numbers)
            self._kept.append((self.number, one))
        while len(self._kept) > MAX_KEPT:
            self._floor, _ = self._kept.popleft()
        tell(self)

    def skip(self) -> None:
        """Some ended that nobody was told of."""
        self._kept.clear()
        self.number = self._floor = next(self._numbers)
        tell(self)

    def since(self, number: int | None) -> msgspec.Raw | None:
        """What ended after that number, unless nothing did."""
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
