"""How many requests may wait in front of the engine. No engine, no loop.

At most `per_tenant` requests of each tenant wait, and `total` in all. Beyond `total` only tenants
with less than an equal share of it may add requests, up to twice as many in all, so that a few
floods don't shut all others out. Their bodies together are bounded by `bytes`
(`shared_capacity`). Requests that are expected count as waiting.
"""

from __future__ import annotations

from collections import Counter

from inference.agent.scheduler.lane import QueuedRequest
from inference.shared_capacity import SharedCapacity


class QueueBounds:
    """The bounds of one queue, and the requests that it expects."""

    def __init__(self, total: int, per_tenant: int, bytes: int) -> None:
        self._total, self._per_tenant = total, per_tenant
        self._bytes = SharedCapacity[str](bytes)
        """Bodies of waiting and expected requests."""
        self._expected: dict[str, QueuedRequest] = {}
        """Requests that will be pushed, by id."""
        self._expecting: Counter[str] = Counter()
        """How many of these, by tenant."""

    def expected(self, tenant: str) -> int:
        """How many requests of this tenant are expected."""
        return self._expecting[tenant]

    def expect(self, request: QueuedRequest) -> None:
        """The request will be added: it counts from now on."""
        self._expected[request.id] = request
        self._expecting[request.tenant] += 1
        self.add(request)

    def expect_no_more(self, id: str) -> bool:
        """The request comes, or will not; returns whether it was expected."""
        if (request := self._expected.pop(id, None)) is None:
            return False
        self._expecting[request.tenant] -= 1
        if not self._expecting[request.tenant]:
            del self._expecting[request.tenant]
        self.remove(request)
        return True

    def add(self, request: QueuedRequest) -> None:
        """The request waits from now on, whether or not there is room."""
        self._bytes.add(request.tenant, request.size)

    def remove(self, request: QueuedRequest) -> None:
        """The request waits no longer."""
        self._bytes.give_back(request.tenant, request.size)

    def refusal(
        self, request: QueuedRequest, *, own: int, waiting: int, tenants: int
    ) -> str | None:
        """Why the request may not be added, None if it may: `own` requests of its tenant wait,
        `waiting` in all, of so many `tenants`."""
        own += self._expecting[request.tenant]
        waiting += len(self._expected)
        if own >= self._per_tenant:
            return f"This tenant has {own} waiting requests, the maximum for one tenant"
        if waiting >= self._total and not self._has_share_left(own, waiting, tenants):
            return f"The engine's queue is full ({self._total} requests)"
        if not self._bytes.has_room(request.tenant, request.size):
            return f"The engine's queue has no room for a body of {request.size} bytes"
        return None

    def _has_share_left(self, own: int, waiting: int, tenants: int) -> bool:
        tenants += len(self._expecting) + (own == 0)
        return own < self._total // tenants and waiting < 2 * self._total
