"""What responses sockets keep between two turns: the last response and all items before it.

Bounded in total, and per tenant to a quarter of that. To make room, the oldest response of the
tenant that keeps the most is dropped, so no tenant loses one to a tenant that keeps more.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from typing import NamedTuple

from inference.shared_capacity import TENANT_SHARE


class ResponseItems(NamedTuple):
    """A response's id, and all items up to its end, as a JSON list without its brackets."""

    id: str
    items: bytes


class LastResponses:
    """The kept responses, by tenant and socket."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._of: defaultdict[int, OrderedDict[Hashable, ResponseItems]] = defaultdict(OrderedDict)
        self._bytes: defaultdict[int, int] = defaultdict(int)

    @property
    def bytes(self) -> int:
        """Size of all kept items."""
        return sum(self._bytes.values())

    def find(self, tenant_id: int, socket: Hashable) -> ResponseItems | None:
        """What is kept for this socket, if anything."""
        kept = self._of.get(tenant_id)
        return None if kept is None else kept.get(socket)

    def keep(self, tenant_id: int, socket: Hashable, response: ResponseItems) -> None:
        """Replace what is kept for this socket; keeps nothing if `response` alone is over a
        tenant's share."""
        self.forget(tenant_id, socket)
        if len(response.items) > self._most // TENANT_SHARE:
            return
        self._of[tenant_id][socket] = response
        self._bytes[tenant_id] += len(response.items)
        while self._bytes[tenant_id] > self._most // TENANT_SHARE:
            self._drop_oldest(tenant_id)
        while self.bytes > self._most:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def forget(self, tenant_id: int, socket: Hashable) -> None:
        """Drop what is kept for this socket."""
        if self.find(tenant_id, socket) is not None:
            self._subtract(tenant_id, self._of[tenant_id].pop(socket))

    def _drop_oldest(self, tenant_id: int) -> None:
        _, response = self._of[tenant_id].popitem(last=False)
        self._subtract(tenant_id, response)

    def _subtract(self, tenant_id: int, response: ResponseItems) -> None:
        self._bytes[tenant_id] -= len(response.items)
        if not self._of[tenant_id]:
            del self._of[tenant_id], self._bytes[tenant_id]
