"""A Prometheus histogram of plain numbers, without locks, for use on one event loop.

The one of prometheus_client takes two locks and walks through its bounds for each value, and here
values come with every frame of tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple


class HistogramExample(NamedTuple):
    """One value of a bucket, with its trace: an OpenMetrics exemplar."""

    trace_id: str
    value: float
    at: float
    """A unix time in seconds."""


class Histogram:
    """Counts values by ascending upper bounds; values above the last bound count too."""

    __slots__ = ("_bounds", "_counts", "_examples", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.total = 0.0
        """The sum of all values."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._examples: dict[int, HistogramExample] = {}

    def add(self, value: float, times: int = 1) -> None:
        """Add this value, this many times. Called about once per frame or token."""
        self.total += value * times
        self._counts[bisect_left(self._bounds, value)] += times

    def add_example(self, example: HistogramExample) -> None:
        """Add the value of a traced request."""
        self.add(example.value)
        self._examples[bisect_left(self._bounds, example.value)] = example

    def buckets(self) -> list[tuple[str, float, HistogramExample | None]]:
        """For each bound: its text, how many values were at most it, and the last example between
        it and the bound before."""
        bounds = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        counts = map(float, accumulate(self._counts))
        examples = map(self._examples.get, range(len(bounds)))
        return list(zip(bounds, counts, examples, strict=True))
