"""Which line is given to an engine next. No loop, no time.

Lines wait here, so that they don't wait in front of engines: of each base model AHEAD lines for
each of its engines may be unbegun, or half as many as run, which keeps the engines busy; what has
begun is as much as they run. Among tenants the one whose turn was longest ago is next, within a
tenant the oldest line. Whose turn it is by what it used is the engines' queues' to say, which hold
some of each.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

L = TypeVar("L")

AHEAD = 16
"""An engine that has begun with one has fifteen to go on with. One that runs many short ones is
done with more than that in a step."""


class Turns(Generic[L]):
    """The waiting lines of one base model."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[L]] = OrderedDict()
        """By tenant, in the order of their turns."""
        self._unbegun = self._running = 0

    @property
    def idle(self) -> bool:
        """Nothing waits here, and nothing is under way."""
        return not (self._lines or self._unbegun or self._running)

    def add(self, tenant: str, line: L) -> None:
        """A line waits."""
        self._lines.setdefault(tenant, deque()).append(line)

    def next(self, engines: int) -> L | None:
        """The line that goes to an engine now, if one does: call `begun` once for it, and then
        `ended`. Without an engine a few go all the same, and hear of that."""
        if not self._lines or self._unbegun >= max(AHEAD * max(1, engines), self._running // 2):
            return None
        tenant, lines = self._lines.popitem(last=False)
        if len(lines) > 1:
            self._lines[tenant] = lines
        self._unbegun += 1
        return lines.popleft()

    def begun(self) -> None:
        """An engine has begun with one of those that `next` gave, or it has ended."""
        self._unbegun -= 1
        self._running += 1

    def ended(self) -> None:
        """One of these has ended."""
        self._running -= 1

    def withdraw(self, of: Callable[[L], bool]) -> list[L]:
        """Take these out."""
        gone: list[L] = []
        for tenant, lines in list(self._lines.items()):
            gone += filter(of, lines)
            kept = deque(line for line in lines if not of(line))
            if kept:
                self._lines[tenant] = kept
            else:
                del self._lines[tenant]
        return gone
