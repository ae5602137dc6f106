"""Memory for what tenants have stored, until it is written: bounded, and of one tenant in part."""

from __future__ import annotations

from collections import Counter

SHARE = 4
"""A tenant has at most one part in so many."""


class Space:
    """So many bytes, of one gateway process."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._used: Counter[int] = Counter()
        """Bytes by tenant."""
        self.used_bytes = 0

    def take(self, tenant_id: int, size: int) -> bool:
        """Take so much more; False: there is no room for it."""
        whole = self.used_bytes + size <= self._most
        if not whole or self._used[tenant_id] + size > self._most // SHARE:
            return False
        self._count(tenant_id, size)
        return True

    def give_back(self, tenant_id: int, size: int) -> None:
        """It is not needed any longer."""
        self._count(tenant_id, -size)

    def _count(self, tenant_id: int, size: int) -> None:
        self.used_bytes += size
        self._used[tenant_id] += size
        if not self._used[tenant_id]:
            del self._used[tenant_id]
