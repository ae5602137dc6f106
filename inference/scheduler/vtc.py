"""Virtual token counters: which tenant is served next. No engine, no loop, no clock.

After "Fairness in Serving Large Language Models" (VTC, OSDI'24), with DLPM's charge: a tenant's
counter grows by the service that it received, in tokens divided by its weight, and the tenant with
the least counter is served next.

Rules
    1. Service is uncached prompt tokens and output tokens, divided by the tenant's weight.
    2. A tenant that begins to wait is lifted to the least counter among waiting tenants; if no
       tenant waits, to the counter of the one that waited last. So no tenant saves up turns while
       idle. A tenant that runs something but waits for nothing counts as idle, as in the paper:
       one long answer would otherwise keep the least counter low, and every newcomer would be
       lifted only to that and owe nothing for what the others had to wait for.
       For the same reason, a tenant that others overtook (it waits for an adapter slot, not for
       its turn) counts as at most `reach` behind the last one that started.
    3. Service by other engines counts as well, but raises a tenant to at most `reach` above the
       least counter. A tenant that had another engine to itself for an hour would otherwise wait
       here for an hour, although no tenant waiting here could have used that engine.
    4. A tenant is forgotten once it neither waits nor runs and its counter is no higher than what
       it would be lifted to: that changes nothing. If more than MAX_TENANTS remain, the idle ones
       with the least counters are forgotten, which cancels what they owe.

Two tenants that wait all the time are then at most U = max(longest prompt, tokens that the engine
holds at once) apart (divided by the smaller weight), so their service over any time differs by at
most 2 U: the bound that the paper proves.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from inference.scheduler.lazy_heap import LazyHeap, Rank

MAX_TENANTS = 65_536
"""Most counters kept: about 10 MB."""

FIRST_SWEEP = 64
"""Number of counters below which there is no sweep for ones to forget."""


@dataclass(slots=True)
class TenantStanding:
    """One tenant's counter, and the numbers of its waiting and running requests."""

    counter: float
    joined: int = 0
    """Sequence number of when it began to wait: of equal counters the longest wait goes first."""
    waiting: int = 0
    running: int = 0


class VirtualTokenCounters:
    """The counters of one lane, in tokens divided by weight."""

    def __init__(self, *, reach: float = math.inf, max_tenants: int = MAX_TENANTS) -> None:
        self._reach, self._max_tenants = reach, max_tenants
        self._standings: dict[str, TenantStanding] = {}
        self._waiting: LazyHeap[str] = LazyHeap(self.rank)
        self._joins = itertools.count(1)
        self._floor = 0.0
        """The lowest counter to which a tenant is lifted."""
        self._last: str | None = None
        self._sweep_at = FIRST_SWEEP

    def __len__(self) -> int:
        """The number of tenants remembered."""
        return len(self._standings)

    def counter(self, tenant: str) -> float:
        """The tenant's counter; `least` if it is not remembered."""
        standing = self._standings.get(tenant)
        return self.least if standing is None else standing.counter

    def rank(self, tenant: str) -> Rank:
        """Sort key of waiting tenants: the least counter first."""
        standing = self._standings[tenant]
        return standing.counter, standing.joined

    def waiting(self, tenant: str) -> int:
        """The number of the tenant's waiting requests."""
        standing = self._standings.get(tenant)
        return 0 if standing is None else standing.waiting

    @property
    def tenants_waiting(self) -> int:
        """The number of waiting tenants."""
        return len(self._waiting)

    @property
    def least(self) -> float:
        """The counter to which a tenant that begins to wait now is lifted."""
        first = self._waiting.first()
        return self._floor if first is None else max(self._floor, self._standings[first].counter)

    def wait(self, tenant: str) -> None:
        """One more request of the tenant waits."""
        standing = self._standing(tenant, self.least)
        if not standing.waiting:
            standing.counter = max(standing.counter, self.least)
            standing.joined = next(self._joins)
            self._waiting.add(tenant)
        standing.waiting += 1

    def withdraw(self, tenant: str) -> None:
        """One of the tenant's waiting requests waits no longer."""
        standing = self._standings[tenant]
        standing.waiting -= 1
        if not standing.waiting:
            self._waiting.discard(tenant)
            self._last = tenant
            self._raise_floor()

    def start(self, tenant: str) -> None:
        """One of the tenant's waiting requests runs now."""
        standing = self._standings[tenant]
        standing.counter = max(standing.counter, self._floor)
        self._floor = max(self._floor, standing.counter - self._reach)
        standing.running += 1
        self.withdraw(tenant)

    def finish(self, tenant: str) -> None:
        """One of the tenant's running requests has ended."""
        self._standings[tenant].running -= 1

    def charge(self, tenant: str, service: float) -> None:
        """A waiting or running tenant received `service`; a negative value corrects an estimate."""
        standing = self._standings[tenant]
        standing.counter += service
        if service < 0 and standing.waiting:
            self._waiting.add(tenant)
        self._raise_floor()

    def served_elsewhere(self, increases: Mapping[str, float]) -> None:
        """Other engines served these tenants, by `increases`.

        If no tenant waits here, the floor follows those tenants, so that newcomers start level with
        them.
        """
        if not increases:
            return
        least, level = self.least, math.inf
        for tenant, increase in increases.items():
            standing = self._standing(tenant, least)
            raised = min(standing.counter + increase, least + self._reach)
            standing.counter = max(standing.counter, raised)
            level = min(level, standing.counter)
        if not self._waiting:
            self._floor = max(self._floor, level)

    def _raise_floor(self) -> None:
        """Follow the tenant that waited last, also while its requests run."""
        if not self._waiting and self._last in self._standings:
            self._floor = max(self._floor, self._standings[self._last].counter)

    def _standing(self, tenant: str, least: float) -> TenantStanding:
        if (standing := self._standings.get(tenant)) is None:
            if len(self._standings) >= self._sweep_at:
                self._forget()
            standing = self._standings[tenant] = TenantStanding(least)
        return standing

    def _forget(self) -> None:
        """Apply rule 4. The next sweep is at twice the number left now: O(1) on average."""
        idle = {t: s.counter for t, s in self._standings.items() if not (s.waiting or s.running)}
        forgotten = [tenant for tenant, counter in idle.items() if counter <= self.least]
        surplus = len(self._standings) - self._max_tenants + 1
        if len(forgotten) < surplus:
            forgotten = heapq.nsmallest(surplus, idle, key=idle.__getitem__)
        for tenant in forgotten:
            del self._standings[tenant]
        left = len(self._standings)
        self._sweep_at = max(min(2 * left, self._max_tenants), left + 1, FIRST_SWEEP)
