"""What the adapter cache holds and what to evict: bookkeeping of bytes. No disk, no loop.

- An adapter's bytes count from `reserve`, before they are downloaded, until `drop`.
- Room is made by dropping whole adapters, the least recently used first.
- A pinned adapter is never dropped to make room. Pins are counted, by digest, and one may be set
  before the adapter is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container


class NoRoom(Exception):
    """The budget has no room for the adapter beside those that must stay."""


class DiskIndex:
    """The adapters on one disk, by digest. Sizes are in bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._pins: dict[str, int] = {}

    def __contains__(self, digest: object) -> bool:
        return digest in self._sizes

    @property
    def digests(self) -> list[str]:
        """Least recently used first."""
        return list(self._sizes)

    def size_of(self, digest: str) -> int:
        return self._sizes[digest]

    def touch(self, digest: str) -> None:
        """The adapter was used now."""
        self._sizes.move_to_end(digest)

    def pin(self, digest: str) -> None:
        """Keep the adapter until `unpin` was called as often."""
        self._pins[digest] = self._pins.get(digest, 0) + 1

    def unpin(self, digest: str) -> None:
        self._pins[digest] -= 1
        if not self._pins[digest]:
            del self._pins[digest]

    def pinned(self, digest: str) -> bool:
        return digest in self._pins

    def reserve(self, digest: str, size: int, *, kept: Container[str] = ()) -> list[str]:
        """Give the adapter `size` bytes, in place of what it had; returns which others to delete.

        Those are already dropped from this index; none of them is pinned or `kept`.

        Raises:
            NoRoom: it does not fit; nothing is changed.
        """
        others = {known: held for known, held in self._sizes.items() if known != digest}
        excess = sum(others.values()) + size - self.budget_bytes
        victims = []
        for known, held in others.items():
            if excess > 0 and not self.pinned(known) and known not in kept:
                victims.append(known)
                excess -= held
        if excess > 0:
            raise NoRoom(
                f"{size} bytes do not fit: the cache is limited to {self.budget_bytes} "
                "bytes, and the rest is in use"
            )
        for victim in victims:
            del self._sizes[victim]
        self._sizes[digest] = size
        self._sizes.move_to_end(digest)
        return victims

    def drop(self, digest: str) -> None:
        """The adapter's files are gone; no error if it was not there."""
        self._sizes.pop(digest, None)
