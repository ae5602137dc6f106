"""A lazy priority queue, for keys whose ranks mostly increase.

Each heap entry holds the rank that its key had when it was pushed. A stored rank that is too low is
corrected only when its entry comes to the top; a rank that decreased needs another `add`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Rank = tuple[float, int]

SLACK = 16
"""Stale entries tolerated before a small heap is rebuilt."""


class LazyHeap(Generic[K]):
    """A set of keys that knows the one with the lowest rank.

    `add`, `discard` and `first` take amortised O(log n): an entry is corrected at most once per
    increase of its rank, and the heap is rebuilt once most of its entries are stale. Ranks are
    unique.
    """

    def __init__(self, rank: Callable[[K], Rank]) -> None:
        self._rank = rank
        self._members: set[K] = set()
        self._heap: list[tuple[Rank, K]] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: K) -> bool:
        return key in self._members

    def add(self, key: K) -> None:
        """Add the key, or note that its rank decreased."""
        self._members.add(key)
        heapq.heappush(self._heap, (self._rank(key), key))
        if len(self._heap) > 2 * len(self._members) + SLACK:
            self._heap = [(self._rank(one), one) for one in self._members]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> None:
        """Remove the key, if it is there."""
        self._members.discard(key)

    def first(self) -> K | None:
        """The key with the lowest rank; None if the set is empty."""
        while self._heap:
            then, key = self._heap[0]
            if key not in self._members:
                heapq.heappop(self._heap)
            elif (now := self._rank(key)) != then:
                heapq.heapreplace(self._heap, (now, key))
            else:
                return key
        return None
