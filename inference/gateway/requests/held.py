"""Requests that wait for an engine at the gateway, in fair order. No loop; time is handed in.

Rules
    1. Order, as in front of an engine: the lane `interactive` before `batch`; in a lane, the tenant
       with the least virtual token counter (`scheduler.vtc`); within a tenant, the oldest. A batch
       request that has waited `batch_patience_s` counts as interactive, of each tenant one at a
       time (`scheduler.aging`).
    2. Requests of different *kinds* need different things of an engine, so one may start while the
       other can't. Whoever takes requests up passes over a kind that nobody takes now.
    3. Requests and their bytes are bounded, of each tenant to its share (`shares`).

Each base model has counters of its own. What started without waiting here charges nobody: where
nobody waits there is no turn to owe. Each call takes O(log n) on average for each kind that waits,
n being tenants.
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
from inference.shares import Shares


@dataclass(frozen=True, slots=True)
class Holding:
    """How much is held, and for how long; none where `seconds` is 0."""

    seconds: float = 0.0
    requests: int = 1024
    """At most, of all tenants."""
    bytes: int = 64 << 20
    """Of their bodies, at most."""
    batch_patience_s: float = 30.0
    retry_after_s: float = 15.0
    """Said beyond that: when the engine that it waits for may be there."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the order has to know of a request. `tokens` is what it may take, about."""

    id: str
    tenant: str
    base_model: str
    kind: Hashable
    """Requests of one kind can run on the same engines."""
    size: int
    """Bytes."""
    tokens: int = 1
    weight: float = 1.0
    lane: str = "interactive"


@dataclass(slots=True, eq=False)
class Waiting:
    """One request that waits; `number` orders arrivals, `since` is in seconds."""

    request: Request
    number: int
    since: float
    lane: Lane


@dataclass(slots=True)
class Lane:
    """One lane of one base model: a line for each kind and tenant."""

    counters: VirtualTokenCounters = field(default_factory=VirtualTokenCounters)
    lines: dict[Hashable, dict[str, OrderedDict[str, Waiting]]] = field(default_factory=dict)
    tenants: dict[Hashable, LazyHeap[str]] = field(default_factory=dict)
    """Who waits, by kind."""

    def add(self, waiting: Waiting) -> None:
        """A request joins the end of its line."""
        request = waiting.request
        self.counters.wait(request.tenant)
        lines = self.lines.setdefault(request.kind, {})
        line = lines.setdefault(request.tenant, OrderedDict())
        line[request.id] = waiting
        if len(line) == 1:
            heap = self.tenants.setdefault(request.kind, LazyHeap(self.counters.rank))
            heap.add(request.tenant)

    def remove(self, waiting: Waiting) -> None:
        """A request leaves its line; then tell the counters how."""
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
        """The first of each kind that is not set aside, in the order of these tuples."""
        for kind, heap in self.tenants.items():
            if kind not in aside and (tenant := heap.first()) is not None:
                head = next(iter(self.lines[kind][tenant].values()))
                yield self.counters.rank(tenant), head.number, head


@dataclass(slots=True)
class Pool:
    """Who waits for engines of one base model."""

    aging: Aging[Waiting]
    interactive: Lane = field(default_factory=Lane)
    batch: Lane = field(default_factory=Lane)
    count: int = 0


class Held:
    """All that waits at this gateway. All times are of one clock, in seconds."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._waiting: dict[str, Waiting] = {}
        self._pools: dict[str, Pool] = {}
        self._kinds: Counter[Hashable] = Counter()
        self._requests, self._bytes = Shares(holding.requests), Shares(holding.bytes)
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def by_base_model(self) -> dict[str, int]:
        """How many wait for each base model for which any do, or did lately."""
        return {name: pool.count for name, pool in self._pools.items() if pool.count}

    def waits(self, kind: Hashable) -> bool:
        """Whether any request of this kind waits: a new one comes after it."""
        return kind in self._kinds

    def add(self, request: Request, now: float) -> None:
        """A request waits from now on.

        Raises:
            NoEngine: as many wait as may; nothing changed.
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
        self._requests.take(request.tenant, 1)
        self._bytes.take(request.tenant, request.size)
        self._note(pool, request, 1)

    def start(self, id: str) -> None:
        """A request that waits has an engine now: its tenant has had its turn."""
        waiting = self._leave(id)
        request, counters = waiting.request, waiting.lane.counters
        counters.start(request.tenant)
        counters.charge(request.tenant, max(1, request.tokens) / request.weight)
        counters.finish(request.tenant)

    def withdraw(self, id: str) -> bool:
        """A request waits no longer; False if it doesn't wait."""
        if id not in self._waiting:
            return False
        waiting = self._leave(id)
        waiting.lane.counters.withdraw(waiting.request.tenant)
        return True

    def first(self, base_model: str, aside: set[Hashable], now: float) -> Request | None:
        """Whose turn it is among those that wait for this base model, without the kinds aside."""
        if (pool := self._pools.get(base_model)) is None:
            return None
        self._promote(pool, now)
        for lane in (pool.interactive, pool.batch):
            # Numbers are unique, so what waits is never compared.
            if (found := min(lane.firsts(aside), default=None)) is not None:
                return found[2].request
        return None

    def _promote(self, pool: Pool, now: float) -> None:
        """Batch requests whose patience is over count as interactive from now, as the youngest."""
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
        """So many more requests like this one wait."""
        pool.count += more
        self._kinds[request.kind] += more
        if not self._kinds[request.kind]:
            del self._kinds[request.kind]

    def _refuse_beyond_bounds(self, request: Request) -> None:
        tenant = request.tenant
        if not (self._requests.has_room(tenant, 1) and self._bytes.has_room(tenant, request.size)):
            raise NoEngine(
                f"Too many requests wait for an engine that serves `{request.base_model}`; try "
                "again later.",
                retry_after_s=self._holding.retry_after_s,
            )
