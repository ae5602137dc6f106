"""Requests that wait in one lane, in fair order. No engine, no loop.

Rules
    1. Among tenants, the one with the least counter goes first.
    2. Within a tenant, the oldest goes first, but requests that continue from another engine go
       before all new ones. One that waits for an adapter slot is overtaken by others that need
       none.

Requests of one tenant and adapter form a line. A line is *ready* if its adapter needs no further
slot (`SlotScheduler.open_to`), else *wanting*; the two are ranked separately, so that thousands of
tenants that all want a slot cost nothing while none is available. A line whose adapter was closed
or left the engine is noticed when it comes to the top; one whose adapter was opened is moved at
once (`opened`).

`first` returns the next request; the `pass_over` methods set requests aside until `restore`. Each
takes O(log n) on average, n being tenants or one tenant's lines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile

from inference.agent.scheduler.slot_scheduler import SlotScheduler
from inference.link.workload import ONE_CHOICE, Workload
from inference.scheduler.lazy_heap import LazyHeap, Rank
from inference.scheduler.vtc import VirtualTokenCounters


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """What the queue has to know of a request.

    `adapter` is a digest, None for the base model. All choices of the workload are generated at
    once.
    """

    id: str
    tenant: str
    adapter: str | None
    workload: Workload = ONE_CHOICE
    weight: float = 1.0
    lane: str = "interactive"
    """`interactive`, or `batch`, which waits behind it."""
    generated: int = 0
    """Tokens that another engine generated for it: it had its turn there, and continues here."""
    paid: int = 0
    """Tokens of prompt and answer that its tenant was charged for there."""
    at_once: int | None = None
    """How many tokens of its prompts the engine works on at a time, if it forgets them afterwards;
    None: all of them, because text is generated from them."""
    size: int = 0
    """Bytes of its body."""

    @property
    def prefill_tokens(self) -> int:
        """Tokens that the engine computes before it generates."""
        return self.held_of(self.workload.prompt_tokens) + self.generated

    def held_of(self, prompt_tokens: int) -> int:
        """How many of `prompt_tokens` tokens of prompts the engine holds at a time."""
        return prompt_tokens if self.at_once is None else min(prompt_tokens, self.at_once)

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight={self.weight} must be greater than 0")


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """One request that has not started; `number` orders a tenant's own, `since` is in seconds."""

    request: QueuedRequest
    number: int
    since: float
    lane: QueueLane


@dataclass(slots=True, eq=False)
class AdapterLine:
    """Waiting requests of one tenant and adapter, in the order of their numbers."""

    tenant: str
    adapter: str | None
    requests: OrderedDict[str, WaitingRequest] = field(default_factory=OrderedDict)

    @property
    def head(self) -> WaitingRequest:
        return next(iter(self.requests.values()))

    def add(self, waiting: WaitingRequest) -> None:
        """O(1) for a new request, else O(requests with a lower number)."""
        self.requests[waiting.request.id] = waiting
        if waiting.request.generated:
            before = takewhile(lambda one: one.number <= waiting.number, self.requests.values())
            for one in reversed([*before, waiting]):
                self.requests.move_to_end(one.request.id, last=False)


def _oldest_head(line: AdapterLine) -> Rank:
    return 0.0, line.head.number


def _ranked_lines() -> LazyHeap[AdapterLine]:
    return LazyHeap(_oldest_head)


@dataclass(slots=True, eq=False)
class Backlog:
    """The lines of one tenant."""

    lines: dict[str | None, AdapterLine] = field(default_factory=dict)
    ready: LazyHeap[AdapterLine] = field(default_factory=_ranked_lines)
    wanting: LazyHeap[AdapterLine] = field(default_factory=_ranked_lines)


class QueueLane:
    """One lane's waiting requests. Only lanes and queue change `counters`."""

    def __init__(self, counters: VirtualTokenCounters, slot_scheduler: SlotScheduler) -> None:
        self.counters = counters
        self._slots = slot_scheduler
        self._backlogs: dict[str, Backlog] = {}
        self._ready: LazyHeap[str] = LazyHeap(counters.rank)
        self._wanting: LazyHeap[str] = LazyHeap(counters.rank)
        self._tenants: dict[str | None, dict[str, None]] = {}
        """The tenants that wait for each adapter."""
        self._tenants_aside: list[str] = []
        self._lines_aside: list[AdapterLine] = []
        self._no_wanting = False
        self._count = 0

    def __len__(self) -> int:
        """Requests waiting."""
        return self._count

    def add(self, waiting: WaitingRequest) -> None:
        """A request joins the end of its line or, if it continues from another engine, goes behind
        the last one there that does."""
        request = waiting.request
        self.counters.wait(request.tenant)
        backlog = self._backlogs.setdefault(request.tenant, Backlog())
        if (line := backlog.lines.get(request.adapter)) is None:
            line = backlog.lines[request.adapter] = AdapterLine(request.tenant, request.adapter)
            self._tenants.setdefault(request.adapter, {})[request.tenant] = None
        line.add(waiting)
        self._count += 1
        if line.head is waiting:
            self._rank(backlog, line)

    def remove(self, waiting: WaitingRequest) -> None:
        """A request leaves its line; the caller then tells the counters whether it starts or is
        withdrawn."""
        request = waiting.request
        backlog, line = self._line(request)
        del line.requests[request.id]
        self._count -= 1
        if not line.requests:
            self._end(backlog, line)

    def waits_for(self, adapter: str | None) -> bool:
        """Whether any request of this adapter waits here."""
        return adapter in self._tenants

    def ahead_of(self, some: Collection[WaitingRequest]) -> dict[str, int]:
        """How many of this lane go before each, by id: estimated from the present counters, as if
        every request charged its tenant the same.

        So before a tenant's k-th request go k of each tenant that is ahead now and k - 1 of each
        other, but at most all that other tenants have waiting.
        """
        ranks = sorted(map(self.counters.rank, self._backlogs)) if some else []
        return {waiting.request.id: self._ahead_of(waiting, ranks) for waiting in some}

    def _ahead_of(self, waiting: WaitingRequest, ranks: list[Rank]) -> int:
        tenant = waiting.request.tenant
        lines = self._backlogs[tenant].lines.values()
        older = sum(one.number < waiting.number for line in lines for one in line.requests.values())
        before = bisect_left(ranks, self.counters.rank(tenant))
        others = self._count - self.counters.waiting(tenant)
        return older + min(others, older * (len(ranks) - 1) + before)

    def opened(self, adapter: str) -> None:
        """Requests of this adapter need no slot of their own any more."""
        for tenant in self._tenants.get(adapter, ()):
            backlog = self._backlogs[tenant]
            self._rank(backlog, backlog.lines[adapter])

    def charge(self, tenant: str, service: float) -> None:
        """The tenant received this much service; less than 0 corrects an estimate."""
        self.counters.charge(tenant, service)
        if service < 0:
            for heap in (self._ready, self._wanting):
                if tenant in heap:
                    heap.add(tenant)

    def first(self) -> WaitingRequest | None:
        """The next in fair order of those not set aside; None if there is none."""
        ready, wanting = self._first_ready(), self._first_wanting()
        if ready is None or wanting is None:
            line = ready or wanting
            return None if line is None else line.head
        return min(ready, wanting, key=self._order).head

    def pass_over(self, tenant: str) -> None:
        """Set all of this tenant's requests aside."""
        self._ready.discard(tenant)
        self.pass_over_wanting(tenant)

    def pass_over_wanting(self, tenant: str) -> None:
        """Set aside those of this tenant's requests that want a slot."""
        self._wanting.discard(tenant)
        self._tenants_aside.append(tenant)

    def pass_over_line(self, waiting: WaitingRequest) -> None:
        """Set aside a request that wants a slot, and all others of its line."""
        backlog, line = self._line(waiting.request)
        self._lines_aside.append(line)
        self._drop(backlog.wanting, line, self._wanting)

    def pass_over_all_wanting(self) -> None:
        """Set aside all requests that want a slot."""
        self._no_wanting = True

    def restore(self) -> None:
        """Bring back all that were set aside."""
        self._no_wanting = False
        for line in self._lines_aside:
            if line.requests:
                self._rank(self._backlogs[line.tenant], line)
        for tenant in self._tenants_aside:
            if backlog := self._backlogs.get(tenant):
                self._rank_tenant(tenant, backlog)
        self._lines_aside.clear()
        self._tenants_aside.clear()

    def _line(self, request: QueuedRequest) -> tuple[Backlog, AdapterLine]:
        backlog = self._backlogs[request.tenant]
        return backlog, backlog.lines[request.adapter]

    def _end(self, backlog: Backlog, line: AdapterLine) -> None:
        """The line's last request left it."""
        self._drop(backlog.ready, line, self._ready)
        self._drop(backlog.wanting, line, self._wanting)
        del backlog.lines[line.adapter]
        if not backlog.lines:
            del self._backlogs[line.tenant]
        tenants = self._tenants[line.adapter]
        del tenants[line.tenant]
        if not tenants:
            del self._tenants[line.adapter]

    def _rank(self, backlog: Backlog, line: AdapterLine) -> None:
        """Put a line where it belongs, ready or wanting."""
        if self._slots.open_to(line.adapter):
            self._drop(backlog.wanting, line, self._wanting)
            backlog.ready.add(line)
        else:
            self._drop(backlog.ready, line, self._ready)
            backlog.wanting.add(line)
        self._rank_tenant(line.tenant, backlog)

    def _rank_tenant(self, tenant: str, backlog: Backlog) -> None:
        for lines, tenants in ((backlog.ready, self._ready), (backlog.wanting, self._wanting)):
            if lines and tenant not in tenants:
                tenants.add(tenant)

    def _drop(
        self, lines: LazyHeap[AdapterLine], line: AdapterLine, tenants: LazyHeap[str]
    ) -> None:
        lines.discard(line)
        if not lines:
            tenants.discard(line.tenant)

    def _first_ready(self) -> AdapterLine | None:
        while (tenant := self._ready.first()) is not None:
            backlog = self._backlogs[tenant]
            line = backlog.ready.first()
            assert line is not None, "a tenant is ranked only while it has lines there"
            if self._slots.open_to(line.adapter):
                return line
            self._rank(backlog, line)
        return None

    def _first_wanting(self) -> AdapterLine | None:
        if self._no_wanting or (tenant := self._wanting.first()) is None:
            return None
        return self._backlogs[tenant].wanting.first()

    def _order(self, line: AdapterLine) -> tuple[Rank, int]:
        return self.counters.rank(line.tenant), line.head.number
