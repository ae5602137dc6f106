"""Requests that wait for an engine at the gateway. No event loop, no clock.

Rules
    1. The lane `interactive` before `batch`. Within a lane tenants take turns, beginning with the
       one that has waited longest; within a tenant, the oldest. What is fair beyond that is
       decided by the engines' queues.
    2. Requests of different *kinds* need different engines, so one may start while another can't.
    3. Requests and their bytes are bounded, in total and per tenant (`shared_capacity`).

Each call takes O(1), except for `in_order`, which takes O(n).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from inference.errors import NoEngine
from inference.link.wire import BATCH
from inference.shared_capacity import SharedCapacity


@dataclass(frozen=True, slots=True)
class Holding:
    """How many requests are held, and for how long; none if `seconds` is 0."""

    seconds: float = 0.0
    requests: int = 1024
    """Most held requests, of all tenants."""
    bytes: int = 64 << 20
    """Most bytes of their bodies."""
    retry_after_s: float = 15.0
    """Told to clients refused beyond these bounds: a missing engine may be back by then."""


@dataclass(slots=True)
class HeldRequest:
    """What is needed to order and to bound a request."""

    id: str
    tenant: str
    base_model: str
    kind: Hashable
    """Requests of one kind can run on the same engines. Changed only by `HeldRequests.set_kind`."""
    size: int
    """Bytes of its body."""
    lane: str = "interactive"


Lane = dict[str, dict[str, HeldRequest]]
"""Requests by id, by tenant; both in the order of arrival."""


class HeldRequests:
    """All requests that wait at this gateway."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._requests: dict[str, HeldRequest] = {}
        self._interactive: Lane = {}
        self._batch: Lane = {}
        self._kinds: Counter[Hashable] = Counter()
        self._base_models: Counter[str] = Counter()
        self._count = SharedCapacity[str](holding.requests)
        self._bytes = SharedCapacity[str](holding.bytes)

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, id: str) -> bool:
        return id in self._requests

    def __getitem__(self, id: str) -> HeldRequest:
        return self._requests[id]

    @property
    def by_base_model(self) -> dict[str, int]:
        """Waiting requests, by base model; only those for which any wait."""
        return dict(self._base_models)

    def has_kind(self, kind: Hashable) -> bool:
        """Whether any request of this kind waits, so that a new one has to wait behind it."""
        return kind in self._kinds

    def add(self, request: HeldRequest) -> None:
        """Let a request wait from now on.

        Raises:
            NoEngine: too many wait already, in total or of its tenant; nothing changed.
        """
        tenant, size = request.tenant, request.size
        if not (self._count.has_room(tenant, 1) and self._bytes.has_room(tenant, size)):
            raise NoEngine(
                "Too many requests are waiting for an engine that serves "
                f"`{request.base_model}`; try again later.",
                retry_after_s=self._holding.retry_after_s,
            )
        self._count.add(tenant, 1)
        self._bytes.add(tenant, size)
        self._requests[request.id] = request
        self._lane(request).setdefault(tenant, {})[request.id] = request
        self._kinds[request.kind] += 1
        self._base_models[request.base_model] += 1

    def remove(self, id: str) -> bool:
        """Remove a request; False if it is not waiting."""
        if (request := self._requests.pop(id, None)) is None:
            return False
        lane = self._lane(request)
        del lane[request.tenant][id]
        if not lane[request.tenant]:
            del lane[request.tenant]
        self._count.give_back(request.tenant, 1)
        self._bytes.give_back(request.tenant, request.size)
        _subtract(self._kinds, request.kind)
        _subtract(self._base_models, request.base_model)
        return True

    def set_kind(self, id: str, kind: Hashable) -> None:
        """What the request needs has changed."""
        request = self._requests[id]
        _subtract(self._kinds, request.kind)
        self._kinds[kind] += 1
        request.kind = kind

    def in_order(self) -> list[str]:
        """The ids of all waiting requests, in the order in which they should start."""
        order: list[str] = []
        for lane in (self._interactive, self._batch):
            turns = deque(map(iter, lane.values()))
            while turns:
                tenant = turns.popleft()
                if (id := next(tenant, None)) is not None:
                    order.append(id)
                    turns.append(tenant)
        return order

    def _lane(self, request: HeldRequest) -> Lane:
        return self._batch if request.lane == BATCH else self._interactive


def _subtract(counts: Counter[Any], key: Hashable) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
