"""The sliding window of one measure of one scope: the last minute in one-second buckets.

Sans-IO; time is a unix time in whole seconds. A bucket leaves only when its whole second is more
than a minute ago, so no span of 60 s ever holds more than the limit.
"""

from __future__ import annotations

WINDOW_S = 60
GONE_S = WINDOW_S + 1
"""Age in seconds at which a bucket leaves: that of second s holds what came until just before
s + 1."""


class LimitWindow:
    """Call `slide` with the present before any other method.

    A clock that steps back is treated as standing still. If it was set back by more than a minute,
    all buckets are dropped: their age is unknown, and clients must not be kept out for hours.
    """

    __slots__ = ("_buckets", "_second", "used")

    def __init__(self) -> None:
        self.used = 0
        """The sum of all buckets."""
        self._second = 0
        self._buckets: dict[int, int] = {}

    def slide(self, second: int) -> None:
        """Drop what is more than a minute old. Each bucket leaves once: O(1), amortised."""
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
        """The first second at which `amount` of what is in the window has left.

        Raises:
            ValueError: `amount` is more than `used`.
        """
        for second in self._seconds():
            amount -= self._buckets.get(second, 0)
            if amount <= 0:
                return second + GONE_S
        raise ValueError("that much is not in the window")

    def empty_at(self) -> int:
        """The first second at which the window is empty; the present if it is empty now."""
        if self._buckets.get(self._second):
            return self._second + GONE_S
        for second in reversed(self._seconds()):
            if self._buckets.get(second, 0):
                return second + GONE_S
        return self._second

    def expired(self, second: int) -> bool:
        """Whether the window must be empty at that second."""
        return second >= self._second + GONE_S

    def _seconds(self) -> range:
        return range(self._second - WINDOW_S, self._second + 1)
