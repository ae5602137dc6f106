"""What sockets of responses keep between two turns: the last response and all that was said before.

Bounded: of a tenant a quarter of all. Where something has to go, it is the oldest of the tenant
that has the most, so nobody loses a conversation to a tenant that keeps more than itself.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from typing import NamedTuple

SHARES = 4
"""A tenant may have one of so many."""


class Said(NamedTuple):
    """A response, and all items up to its end, as JSON without the brackets of their list."""

    id: str
    items: bytes


class Conversations:
    """By their sockets."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._of: defaultdict[int, OrderedDict[Hashable, Said]] = defaultdict(OrderedDict)
        self._bytes: defaultdict[int, int] = defaultdict(int)

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(self._bytes.values())

    def find(self, tenant_id: int, socket: Hashable) -> Said | None:
        """What is kept for it."""
        kept = self._of.get(tenant_id)
        return None if kept is None else kept.get(socket)

    def keep(self, tenant_id: int, socket: Hashable, said: Said) -> None:
        """Instead of what was kept for it; nothing if it alone is more than a tenant may have."""
        self.forget(tenant_id, socket)
        if len(said.items) > self._most // SHARES:
            return
        self._of[tenant_id][socket] = said
        self._bytes[tenant_id] += len(said.items)
        while self._bytes[tenant_id] > self._most // SHARES:
            self._drop_oldest(tenant_id)
        while self.bytes > self._most:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def forget(self, tenant_id: int, socket: Hashable) -> None:
        """Keep nothing for it."""
        if self.find(tenant_id, socket) is not None:
            self._took(tenant_id, self._of[tenant_id].pop(socket))

    def _drop_oldest(self, tenant_id: int) -> None:
        _, said = self._of[tenant_id].popitem(last=False)
        self._took(tenant_id, said)

    def _took(self, tenant_id: int, said: Said) -> None:
        self._bytes[tenant_id] -= len(said.items)
        if not self._of[tenant_id]:
            del self._of[tenant_id], self._bytes[tenant_id]
