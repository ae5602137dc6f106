"""Who is first, where ranks rise all the time and only the first one matters.

A heap in which ranks are brought up to date late: each entry holds the rank that its key had when
it was put there. Ranks mostly rise, so an entry may only promise too much, and it is put right
when it comes to the top. Whoever lowers a rank adds the key again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Rank = tuple[float, int]

SLACK = 16
"""Entries left over from keys that went, before a small heap is made anew."""


class Ranking(Generic[K]):
    """A set of keys of which the one with the least rank is known.

    `add`, `discard` and `first` take O(log n) on average: an entry is put right at most once for
    each rise of its rank, and the heap is made anew once most of its entries are left over. No two
    keys may have one rank.
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
        """Add the key, or say that its rank fell."""
        self._members.add(key)
        heapq.heappush(self._heap, (self._rank(key), key))
        if len(self._heap) > 2 * len(self._members) + SLACK:
            self._heap = [(self._rank(one), one) for one in self._members]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> None:
        """Remove the key, if it is there."""
        self._members.discard(key)

    def first(self) -> K | None:
        """The key with the least rank; None where there is none."""
        while self._heap:
            then, key = self._heap[0]
            if key not in self._members:
                heapq.heappop(self._heap)
            elif (now := self._rank(key)) != then:
                heapq.heapreplace(self._heap, (now, key))
            else:
                return key
        return None
