"""Requests that wait for an engine at the gateway, in fair order. No event loop; time is passed in.

Rules
    1. Order, as in an engine's queue: the lane `interactive` before `batch`; within a lane, the
       tenant with the lowest virtual token counter (`scheduler.vtc`); within a tenant, the oldest.
       A batch request that has waited `batch_patience_s` counts as interactive, one per tenant at a
       time (`scheduler.aging`).
    2. Requests of different *kinds* need different engines, so one may start while another can't.
       The caller sets a kind aside while no engine takes it.
    3. Requests and their bytes are bounded, in total and per tenant (`shared_capacity`).

Each base model has its own counters. Requests that start without waiting here charge no counter:
while nothing waits, no tenant owes another a turn. Each call takes O(log n) on average for each
waiting kind, n being the number of tenants.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from inference.errors import NoEngine
from inference.link.wire import BATCH
from inference.scheduler.aging import Aging
from inference.scheduler.lazy_heap import LazyHeap, Rank
from inference.scheduler.vtc import VirtualTokenCounters
from inference.shared_capacity import SharedCapacity


@dataclass(frozen=True, slots=True)
class Holding:
    """How many requests are held, and for how long; none if `seconds` is 0."""

    seconds: float = 0.0
    requests: int = 1024
    """Most held requests, of all tenants."""
    bytes: int = 64 << 20
    """Most bytes of their bodies."""
    batch_patience_s: float = 30.0
    retry_after_s: float = 15.0
    """Told to clients refused beyond these bounds: a missing engine may be back by then."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is needed to order a request. `tokens` is about what it may use."""

    id: str
    tenant: str
    base_model: str
    kind: Hashable
    """Requests of one kind can run on the same engines."""
    size: int
    """Bytes of its body."""
    tokens: int = 1
    weight: float = 1.0
    lane: str = "interactive"


@dataclass(slots=True, eq=False)
class Waiting:
    """One waiting request; `number` orders arrivals, `since` is a time in seconds."""

    request: Request
    number: int
    since: float
    lane: Lane


@dataclass(slots=True)
class Lane:
    """One lane of one base model: a queue for each kind and tenant."""

    counters: VirtualTokenCounters = field(default_factory=VirtualTokenCounters)
    lines: dict[Hashable, dict[str, OrderedDict[str, Waiting]]] = field(default_factory=dict)
    tenants: dict[Hashable, LazyHeap[str]] = field(default_factory=dict)
    """Tenants with waiting requests, by kind."""

    def add(self, waiting: Waiting) -> None:
        """Append a request to its queue."""
        request = waiting.request
        self.counters.wait(request.tenant)
        lines = self.lines.setdefault(request.kind, {})
        line = lines.setdefault(request.tenant, OrderedDict())
        line[request.id] = waiting
        if len(line) == 1:
            heap = self.tenants.setdefault(request.kind, LazyHeap(self.counters.rank))
            heap.add(request.tenant)

    def remove(self, waiting: Waiting) -> None:
        """Remove a request from its queue. The caller then tells the counters why it left."""
        request = waiting.request
        lines = self.lines[request.kind]
        line = lines[request.tenant]
        del line[request.id]
        if not line:
            del lines[request.tenant]
            self.tenants[request.kind].discard(request.tenant)
        if not lines:
            del self.lines[request.kind], self.tenants[request.kind]

    def firsts(self, aside: set[Hashable]) -> Iterator[tuple[Rank, int, Waiting]]:
        """The first request of each kind that is not set aside; the least tuple is next."""
        for kind, heap in self.tenants.items():
            if kind not in aside and (tenant := heap.first()) is not None:
                head = next(iter(self.lines[kind][tenant].values()))
                yield self.counters.rank(tenant), head.number, head


@dataclass(slots=True)
class Pool:
    """The requests that wait for engines of one base model."""

    aging: Aging[Waiting]
    interactive: Lane = field(default_factory=Lane)
    batch: Lane = field(default_factory=Lane)
    count: int = 0


class Held:
    """All requests that wait at this gateway. All times are of one clock, in seconds."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._waiting: dict[str, Waiting] = {}
        self._pools: dict[str, Pool] = {}
        self._kinds: Counter[Hashable] = Counter()
        self._requests, self._bytes = (
            SharedCapacity[str](holding.requests),
            SharedCapacity[str](holding.bytes),
        )
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def by_base_model(self) -> dict[str, int]:
        """Waiting requests, by base model; only those for which any wait."""
        return {name: pool.count for name, pool in self._pools.items() if pool.count}

    def waits(self, kind: Hashable) -> bool:
        """Whether any request of this kind waits, so that a new one has to wait behind it."""
        return kind in self._kinds

    def add(self, request: Request, now: float) -> None:
        """Let a request wait from now on.

        Raises:
            NoEngine: too many wait already, in total or of its tenant; nothing changed.
        """
        self._refuse_beyond_bounds(request)
        pool = self._pools.get(request.base_model)
        if pool is None:
            pool = self._pools[request.base_model] = Pool(Aging(self._holding.batch_patience_s))
        lane = pool.batch if request.lane == BATCH else pool.interactive
        waiting = Waiting(request, next(self._arrivals), now, lane)
        lane.add(waiting)
        if lane is pool.batch:
            pool.aging.add(waiting)
        self._waiting[request.id] = waiting
        self._requests.add(request.tenant, 1)
        self._bytes.add(request.tenant, request.size)
        self._note(pool, request, 1)

    def start(self, id: str) -> None:
        """A waiting request got an engine: remove it and charge its tenant."""
        waiting = self._leave(id)
        request, counters = waiting.request, waiting.lane.counters
        counters.start(request.tenant)
        counters.charge(request.tenant, max(1, request.tokens) / request.weight)
        counters.finish(request.tenant)

    def withdraw(self, id: str) -> bool:
        """Remove a request without charging its tenant; False if it is not waiting."""
        if id not in self._waiting:
            return False
        waiting = self._leave(id)
        waiting.lane.counters.withdraw(waiting.request.tenant)
        return True

    def first(self, base_model: str, aside: set[Hashable], now: float) -> Request | None:
        """The next request for this base model that is not of a kind in `aside`, or None."""
        if (pool := self._pools.get(base_model)) is None:
            return None
        self._promote(pool, now)
        for lane in (pool.interactive, pool.batch):
            # Numbers are unique, so `Waiting` objects are never compared.
            if (found := min(lane.firsts(aside), default=None)) is not None:
                return found[2].request
        return None

    def _promote(self, pool: Pool, now: float) -> None:
        """Move batch requests whose patience is over to the interactive lane, as the youngest."""
        while waiting := pool.aging.next_over(now):
            pool.batch.remove(waiting)
            pool.batch.counters.withdraw(waiting.request.tenant)
            waiting.lane, waiting.number = pool.interactive, next(self._arrivals)
            pool.interactive.add(waiting)

    def _leave(self, id: str) -> Waiting:
        waiting = self._waiting.pop(id)
        request = waiting.request
        pool = self._pools[request.base_model]
        waiting.lane.remove(waiting)
        pool.aging.discard(waiting)
        self._requests.give_back(request.tenant, 1)
        self._bytes.give_back(request.tenant, request.size)
        self._note(pool, request, -1)
        return waiting

    def _note(self, pool: Pool, request: Request, more: int) -> None:
        """Count `more` waiting requests of this kind; negative for fewer."""
        pool.count += more
        self._kinds[request.kind] += more
        if not self._kinds[request.kind]:
            del self._kinds[request.kind]

    def _refuse_beyond_bounds(self, request: Request) -> None:
        tenant = request.tenant
        if not (self._requests.has_room(tenant, 1) and self._bytes.has_room(tenant, request.size)):
            raise NoEngine(
                "Too many requests are waiting for an engine that serves "
                f"`{request.base_model}`; try again later.",
                retry_after_s=self._holding.retry_after_s,
            )
