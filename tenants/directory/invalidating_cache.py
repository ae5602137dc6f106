"""A bounded cache of values read from PostgreSQL, valid while change notices are being received.

Sans-IO: time is a monotonic clock value in seconds that the caller passes. The rules:

1. Entries are used only if the listener heard from the database within the last FRESH_S, since
   later changes may have gone unnoticed. If the database can't be asked either, the `last` value
   may be used for a time that the caller chooses.
2. A change notice names a tag and drops every entry with that tag. A listener that was
   disconnected may have missed any change, so reconnecting drops everything.
3. A value read while a change of one of its tags arrived may predate the change. Reads are
   therefore bracketed by `reading`, and such a value is not stored.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Tag = Hashable

FRESH_S = 5.0
"""A revocation whose notice was lost takes effect after this time at the latest."""


@dataclass(eq=False, slots=True)
class Reading:
    """A read in progress, and the tags that changed since it began."""

    changed: set[Tag] = field(default_factory=set)
    cleared: bool = False

    def missed(self, tags: Collection[Tag]) -> bool:
        return self.cleared or not self.changed.isdisjoint(tags)


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    tags: Collection[Tag]
    until: float


class InvalidatingCache(Generic[K, V]):
    """Holds at most `limit` entries; evicts the least recently used."""

    def __init__(self, limit: int, *, fresh_s: float = FRESH_S) -> None:
        self._limit = limit
        self._fresh_s = fresh_s
        self._alive_at = float("-inf")
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._by_tag: defaultdict[Tag, set[K]] = defaultdict(set)
        self._readings: set[Reading] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def note_alive(self, now: float) -> None:
        """All changes committed before `now` have been received."""
        self._alive_at = max(self._alive_at, now)

    def fresh(self, now: float) -> bool:
        """Whether entries may be used now (rule 1)."""
        return self.alive_within(self._fresh_s, now)

    def get(self, key: K, now: float) -> V | None:
        """The value; None if there is none that may be used."""
        entry = self._entries.get(key)
        if entry is None or not self.fresh(now) or now >= entry.until:
            return None
        self._entries.move_to_end(key)
        return entry.value

    def alive_within(self, seconds: float, now: float) -> bool:
        """Whether the listener was alive within that time."""
        return now - self._alive_at <= seconds

    def last(self, key: K, now: float, *, within_s: float) -> V | None:
        """The value as it was when the listener was last alive, if that was within `within_s`."""
        entry = self._entries.get(key)
        if entry is None or not self.alive_within(within_s, now) or now >= entry.until:
            return None
        return entry.value

    def has(self, tag: Tag, now: float) -> bool:
        """Whether a usable entry carries this tag."""
        return self.fresh(now) and self._carried(tag, now)

    def had(self, tag: Tag, now: float, *, within_s: float) -> bool:
        """Whether an entry that `last` would return carries this tag."""
        return self.alive_within(within_s, now) and self._carried(tag, now)

    def _carried(self, tag: Tag, now: float) -> bool:
        return any(now < self._entries[key].until for key in self._by_tag.get(tag, ()))

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Bracket a read of the database; pass the Reading to `put` inside (rule 3)."""
        reading = Reading()
        self._readings.add(reading)
        try:
            yield reading
        finally:
            self._readings.discard(reading)

    def put(
        self,
        reading: Reading,
        key: K,
        value: V,
        tags: Collection[Tag] = (),
        *,
        until: float = float("inf"),
    ) -> bool:
        """Store a value; returns False, storing nothing, if the read may predate a change."""
        if reading.missed(tags):
            return False
        self._remove(key)
        self._entries[key] = _Entry(value, tags, until)
        for tag in tags:
            self._by_tag[tag].add(key)
        while len(self._entries) > self._limit:
            self._remove(next(iter(self._entries)))
        return True

    def drop(self, tag: Tag) -> None:
        """Drop all entries with this tag."""
        for reading in self._readings:
            reading.changed.add(tag)
        for key in tuple(self._by_tag.get(tag, ())):
            self._remove(key)

    def clear(self) -> None:
        """Drop all entries: anything may have changed."""
        for reading in self._readings:
            reading.cleared = True
        self._entries.clear()
        self._by_tag.clear()

    def _remove(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        for tag in entry.tags if entry else ():
            keys = self._by_tag[tag]
            keys.discard(key)
            if not keys:
                del self._by_tag[tag]
