"""The lines that wait for an engine, and which goes next. No event loop, no clock.

Lines wait here, so that they don't fill engines' queues: for each base model, AHEAD lines per
engine may be unbegun, or half as many as run if that is more, which keeps the engines busy. The
number that have begun is not bounded; engines run as many as they can. Among tenants the one whose
turn was longest ago is next, within a tenant the oldest line. Fairness by usage is left to the
engines' queues, which hold some lines of each tenant.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

L = TypeVar("L")

AHEAD = 16
"""An engine that begins one line has fifteen more to continue with. An engine that runs many short
lines can finish more than that in one step, which is why half of the running lines is allowed too.
"""


class LineQueue(Generic[L]):
    """The waiting lines of one base model."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[L]] = OrderedDict()
        """By tenant, in the order of their turns."""
        self._unbegun = self._running = 0

    @property
    def idle(self) -> bool:
        """Whether no line waits here or runs."""
        return not (self._lines or self._unbegun or self._running)

    def add(self, tenant: str, line: L) -> None:
        """Let a line wait."""
        self._lines.setdefault(tenant, deque()).append(line)

    def next(self, engines: int) -> L | None:
        """The line that goes to an engine now, or None. Call `begun` once for it, and then `ended`.
        With no engine a few lines are still given out, so that they fail with that error."""
        if not self._lines or self._unbegun >= max(AHEAD * max(1, engines), self._running // 2):
            return None
        tenant, lines = self._lines.popitem(last=False)
        if len(lines) > 1:
            self._lines[tenant] = lines
        self._unbegun += 1
        return lines.popleft()

    def begun(self) -> None:
        """An engine has begun a line that `next` returned, or the line has ended without that."""
        self._unbegun -= 1
        self._running += 1

    def ended(self) -> None:
        """A line that had begun has ended."""
        self._running -= 1

    def withdraw(self, of: Callable[[L], bool]) -> list[L]:
        """Remove the waiting lines for which `of` holds; returns them."""
        withdrawn: list[L] = []
        for tenant, lines in list(self._lines.items()):
            withdrawn += filter(of, lines)
            kept = deque(line for line in lines if not of(line))
            if kept:
                self._lines[tenant] = kept
            else:
                del self._lines[tenant]
        return withdrawn
