"""How long readers waited while their streams moved: a histogram, as Prometheus has them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS_S = tuple(0.01 * 2**n for n in range(14))
"""OpenTelemetry's for times of generating: 0.01 s, doubling to 81.92 s."""


class Gaps:
    """Times in seconds."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def add(self, seconds: float) -> None:
        """A reader waited so long."""
        self.total_s += seconds
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """How many were no longer than each bound, by its text."""
        bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
