"""Sums that accumulate in memory and are written from time to time, and times counted in buckets.

Buckets can be summed over any number of requests, minutes and gateways, which percentiles cannot: a
percentile is computed from the sum of all buckets in question.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate
from typing import Generic, Protocol, Self, TypeVar

from inference.gateway.measuring.measures import DURATION_S

BUCKETS = len(DURATION_S) + 1


class Sum(Protocol):
    def add(self, other: Self) -> None: ...


K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Sum)


class MeasureSums(Generic[K, S]):
    """A sum for each key, since the last `take`."""

    def __init__(self, empty: Callable[[], S]) -> None:
        self._empty = empty
        self._of: dict[K, S] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: K) -> bool:
        return key in self._of

    def of(self, key: K) -> S:
        """The sum of this key, to add to."""
        if (found := self._of.get(key)) is None:
            found = self._of[key] = self._empty()
        return found

    def take(self) -> dict[K, S]:
        """Return all sums, and start anew."""
        taken, self._of = self._of, {}
        return taken

    def give_back(self, taken: Iterable[tuple[K, S]]) -> None:
        """Add back taken sums that could not be written."""
        for key, sums in taken:
            self.of(key).add(sums)


def sums_of_buckets(counts: Iterable[Sequence[int]]) -> list[int]:
    """The counts of each bucket, summed over rows of BUCKETS counts."""
    return [sum(column) for column in zip([0] * BUCKETS, *counts, strict=True)]


def bucket_of(seconds: float) -> int:
    """The bucket of a time: the first whose bound it does not exceed."""
    return bisect_left(DURATION_S, seconds)


def added(one: Sequence[int], more: Sequence[int]) -> list[int]:
    """The sum, bucket by bucket."""
    return [a + b for a, b in zip(one, more, strict=True)]


def percentile_s(buckets: Sequence[int], share: float) -> float | None:
    """The time in seconds within which this share (0 to 1) of the requests were; None if there are
    no requests.

    Within a bucket they are assumed to be spread evenly, as Prometheus's `histogram_quantile` does;
    values above the last bound count as that bound.
    """
    sums = list(accumulate(buckets))
    bounds: tuple[float, ...] = DURATION_S
    if not sums or not sums[-1]:
        return None
    rank = share * sums[-1]
    at = bisect_left(sums, rank)
    if at >= len(bounds):
        return bounds[-1]
    low, below = (bounds[at - 1], sums[at - 1]) if at else (0.0, 0)
    return low + (bounds[at] - low) * (rank - below) / buckets[at]
