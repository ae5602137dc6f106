"""What one metric of one scope counted in the last minute: a sliding window of one-second buckets.

Sans-IO; time is a unix time in whole seconds. A bucket leaves only when all of its second is more
than a minute ago, so no span of 60 s ever holds more than the window let in.
"""

from __future__ import annotations

WINDOW_S = 60
GONE_S = WINDOW_S + 1
"""A bucket of the second s holds what came until just before s + 1."""


class Window:
    """Slide it to the present before anything else.

    A clock that steps back stands still here. If it was set back by more than a minute, all is
    forgotten: nobody knows how old that is, and nobody shall be kept out for hours.
    """

    __slots__ = ("_buckets", "_second", "used")

    def __init__(self) -> None:
        self.used = 0
        """The sum of all buckets."""
        self._second = 0
        self._buckets: dict[int, int] = {}

    def slide(self, second: int) -> None:
        """Let go of what is over a minute old. Each bucket leaves once: O(1), amortised."""
        if second > self._second:
            for old in range(self._second - WINDOW_S, min(self._second, second - GONE_S) + 1):
                self.used -= self._buckets.pop(old, 0)
            self._second = second
        elif second < self._second - WINDOW_S:
            self._buckets.clear()
            self.used, self._second = 0, second

    def add(self, amount: int) -> None:
        """Count this much now."""
        if amount:
            self._buckets[self._second] = self._buckets.get(self._second, 0) + amount
            self.used += amount

    def give_back(self, second: int, amount: int) -> None:
        """Uncount what was counted in that second; nothing if that has left the window."""
        held = self._buckets.get(second, 0)
        back = min(held, amount)
        if back:
            self._buckets[second] = held - back
            self.used -= back

    def leaves_at(self, amount: int) -> int:
        """The first second at which that much of what is in it has left; at most `used`."""
        for second in self._seconds():
            amount -= self._buckets.get(second, 0)
            if amount <= 0:
                return second + GONE_S
        raise ValueError("that much is not in the window")

    def empty_at(self) -> int:
        """The first second at which all of it has left, now if it is empty."""
        if self._buckets.get(self._second):
            return self._second + GONE_S
        for second in reversed(self._seconds()):
            if self._buckets.get(second, 0):
                return second + GONE_S
        return self._second

    def gone(self, second: int) -> bool:
        """Whether nothing of it can be left by then."""
        return second >= self._second + GONE_S

    def _seconds(self) -> range:
        return range(self._second - WINDOW_S, self._second + 1)
