"""A histogram as Prometheus has them: plain numbers of one event loop, without a lock.

prometheus_client's own takes two locks and walks through its bounds for each value, and values come
with every frame of tokens here.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple


class Example(NamedTuple):
    """One of the values of a bucket: an exemplar of OpenMetrics."""

    trace_id: str
    value: float
    at: float
    """A unix time in seconds."""


class Histogram:
    """Counts values by upper bounds, which grow; what is above the last one counts too."""

    __slots__ = ("_bounds", "_counts", "_examples", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.total = 0.0
        """The sum of all values."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._examples: dict[int, Example] = {}

    def add(self, value: float, times: int = 1) -> None:
        """It was this, so many times. Once a frame, or a token."""
        self.total += value * times
        self._counts[bisect_left(self._bounds, value)] += times

    def add_example(self, example: Example) -> None:
        """It was this, in a request of which there is a trace."""
        self.add(example.value)
        self._examples[bisect_left(self._bounds, example.value)] = example

    def buckets(self) -> list[tuple[str, float, Example | None]]:
        """By the text of each bound: how many were no longer, and the last traced one between it
        and the bound before."""
        bounds = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        counts = map(float, accumulate(self._counts))
        examples = map(self._examples.get, range(len(bounds)))
        return list(zip(bounds, counts, examples, strict=True))
