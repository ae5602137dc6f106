"""Bounds the memory for content that waits to be stored, in total and per tenant."""

from __future__ import annotations

from collections import Counter

SHARE = 4
"""A tenant may use at most one part in this many."""


class Space:
    """A budget of `most_bytes` for one gateway process."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._used: Counter[int] = Counter()
        """Bytes by tenant."""
        self.used_bytes = 0

    def take(self, tenant_id: int, size: int) -> bool:
        """Take `size` more bytes; False if there is no room, and then nothing is taken."""
        whole = self.used_bytes + size <= self._most
        if not whole or self._used[tenant_id] + size > self._most // SHARE:
            return False
        self._count(tenant_id, size)
        return True

    def give_back(self, tenant_id: int, size: int) -> None:
        """Give back `size` bytes taken earlier."""
        self._count(tenant_id, -size)

    def _count(self, tenant_id: int, size: int) -> None:
        self.used_bytes += size
        self._used[tenant_id] += size
        if not self._used[tenant_id]:
            del self._used[tenant_id]
