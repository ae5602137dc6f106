"""How much each of many tenants or adapters is asked for."""

from __future__ import annotations

import bisect
import itertools
import random


class Zipf:
    """Numbers from 0, number i with weight 1 / (i + 1) ** exponent; exponent 0 makes all alike."""

    def __init__(self, count: int, exponent: float) -> None:
        self._sums = list(itertools.accumulate((i + 1) ** -exponent for i in range(count)))

    def draw(self, rng: random.Random) -> int:
        """A random number of the distribution."""
        return bisect.bisect(self._sums, rng.random() * self._sums[-1])
