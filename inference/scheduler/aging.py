"""Aging: batch requests that have waited `patience_s` count as interactive. Time is passed in.

Only one per tenant at a time, so that a tenant's chats do not wait behind all of its batch work;
the next one is promoted after that one has started or ended.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from inference.scheduler.lazy_heap import LazyHeap, Rank


class NamedRequest(Protocol):
    """The identity of a request."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...


class AgingWaits(Protocol):
    """A waiting request; `number` is the order of arrival, `since` is in seconds."""

    @property
    def request(self) -> NamedRequest: ...
    @property
    def number(self) -> int: ...
    @property
    def since(self) -> float: ...


W = TypeVar("W", bound=AgingWaits)


class Aging(Generic[W]):
    """The waiting batch requests. Calls take O(log n) on average for n tenants that have some."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._waiting: dict[str, OrderedDict[str, W]] = {}
        """By tenant, the oldest first; without those in `_over`."""
        self._over: dict[str, W] = {}
        """By tenant, the request that counts as interactive."""
        self._next: LazyHeap[str] = LazyHeap(self._oldest)
        """Tenants with requests in `_waiting` and none in `_over`."""

    def add(self, waiting: W) -> None:
        """Add a batch request that waits from now on."""
        tenant = waiting.request.tenant
        self._waiting.setdefault(tenant, OrderedDict())[waiting.request.id] = waiting
        self._rank(tenant)

    def discard(self, waiting: W) -> None:
        """Remove a request that waits no longer; no error if it was never added."""
        tenant = waiting.request.tenant
        if self._over.get(tenant) is waiting:
            del self._over[tenant]
            self._rank(tenant)
        elif own := self._waiting.get(tenant):
            own.pop(waiting.request.id, None)
            self._drop_empty(tenant)

    def next_over(self, now: float) -> W | None:
        """A request that has waited `patience_s`, if there is one; it counts as interactive until
        `discard`."""
        tenant = self._next.first()
        if tenant is None or now - self._head(tenant).since < self.patience_s:
            return None
        _, waiting = self._waiting[tenant].popitem(last=False)
        self._over[tenant] = waiting
        self._next.discard(tenant)
        self._drop_empty(tenant)
        return waiting

    def _rank(self, tenant: str) -> None:
        if tenant in self._waiting and tenant not in self._over and tenant not in self._next:
            self._next.add(tenant)

    def _drop_empty(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._next.discard(tenant)

    def _head(self, tenant: str) -> W:
        return next(iter(self._waiting[tenant].values()))

    def _oldest(self, tenant: str) -> Rank:
        head = self._head(tenant)
        return head.since, head.number
