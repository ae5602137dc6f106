"""Aging: batch requests that have waited `patience_s` count as interactive. Time is passed in.

One per tenant at a time, so that a tenant's chat does not wait behind all of its batch work; the
next one ages when that one has started or ended.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from inference.scheduler.lazy_heap import LazyHeap, Rank


class Named(Protocol):
    """A request, as far as it is told apart from others."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...


class Waits(Protocol):
    """One request that waits; `number` orders arrivals, `since` is in seconds."""

    @property
    def request(self) -> Named: ...
    @property
    def number(self) -> int: ...
    @property
    def since(self) -> float: ...


W = TypeVar("W", bound=Waits)


class Aging(Generic[W]):
    """The batch requests that wait. Each call takes O(log n) on average, n being their tenants."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._waiting: dict[str, OrderedDict[str, W]] = {}
        """By tenant, the oldest first; without those whose patience is over."""
        self._over: dict[str, W] = {}
        """By tenant, the one whose patience is over."""
        self._next: LazyHeap[str] = LazyHeap(self._oldest)
        """Tenants that have some waiting, and none whose patience is over."""

    def add(self, waiting: W) -> None:
        """A batch request waits."""
        tenant = waiting.request.tenant
        self._waiting.setdefault(tenant, OrderedDict())[waiting.request.id] = waiting
        self._rank(tenant)

    def discard(self, waiting: W) -> None:
        """A request waits no longer; no error if it was never here."""
        tenant = waiting.request.tenant
        if self._over.get(tenant) is waiting:
            del self._over[tenant]
            self._rank(tenant)
        elif own := self._waiting.get(tenant):
            own.pop(waiting.request.id, None)
            self._drop_empty(tenant)

    def next_over(self, now: float) -> W | None:
        """One whose patience is over now, and that counts as interactive until `discard`."""
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
