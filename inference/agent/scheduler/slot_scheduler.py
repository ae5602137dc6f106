"""Which adapter gets the engine's next slot. No engine, no loop; time is passed in.

Rules
    1. A request whose adapter has a slot needs none and may overtake one that waits for a slot.
    2. The overtaking is bounded. For an adapter that waits impatiently, one adapter in use is
       closed to new requests of any tenant. When its last running request has ended, its slot is
       promised to the adapter that waits, and no other adapter takes it.
    3. An adapter that takes a slot keeps it open for at least `min_open_s`. With more adapters than
       slots, each would otherwise be closed as soon as its first request had started, and the
       engine would run one request per slot: it would thrash.
    4. The adapter to close is one of the tenant that has the most slots; of those, the one with the
       fewest running requests, because it is empty first. The choice is not reconsidered.
    5. A slot counts as its tenant's while it is open, or is being emptied for it or promised to
       it. While another tenant waits for a slot, none may have more than `quota`: one of those
       above is closed at once, without patience or `min_open_s`, or its claim passes to the other
       tenant. At its quota a tenant may only close its own. While no other tenant waits, it may
       take all.

So an adapter that waits has a slot at the latest after patience, `min_open_s`, and the longest
answer of the adapter that was closed for it, unless more adapters wait before it than there are
slots.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from inference.agent.scheduler.slots import Slots


@dataclass(frozen=True, slots=True)
class Occupancy:
    """An adapter in use: which tenant's request took the slot, and when."""

    tenant: str
    since: float


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """A waiting adapter's claim to the slot of `leaving`; that is None once the slot is empty."""

    tenant: str
    leaving: str | None


class SlotScheduler:
    """Which adapters have the slots, and which one gets the next."""

    def __init__(self, slots: Slots, *, quota: int | None, min_open_s: float) -> None:
        """`quota` slots for each tenant (None: all); times are in seconds."""
        if quota is not None and quota < 1:
            raise ValueError(f"a quota of {quota} slots would shut every tenant out")
        self._slots, self._min_open_s = slots, min_open_s
        self._quota = math.inf if quota is None else quota
        self._in_use: dict[str, Occupancy] = {}
        self._claims: dict[str, SlotClaim] = {}
        """By the adapter that waits; a slot has at most one claim."""
        self._closed: set[str] = set()
        """Adapters in use whose slot is claimed."""
        self._promised: set[str] = set()
        """Adapters that wait and whose slot is empty."""
        self._has: Counter[str] = Counter()
        """Each tenant's slots, by rule 5."""

    def open_to(self, adapter: str | None) -> bool:
        """Whether a request of this adapter needs no further slot: the adapter has an open one, or
        was promised one, or it is the base model (None)."""
        if adapter is None or adapter in self._promised:
            return True
        return adapter in self._in_use and adapter not in self._closed

    def free_for(self, adapter: str | None) -> bool:
        """Whether a request of this adapter may start now."""
        if self.open_to(adapter):
            return True
        return adapter not in self._in_use and self._slots.unused > len(self._promised)

    def at_quota(self, tenant: str) -> bool:
        """Whether this tenant must leave the next slot to others that wait for one."""
        return self._has[tenant] >= self._quota

    def start(self, adapter: str | None, tenant: str, now: float) -> list[str]:
        """A request starts; call `free_for` first. Returns the adapters that are now open."""
        self._slots.start(adapter)
        if adapter is None or adapter in self._in_use:
            return []
        reopened = self.forget(adapter)
        self._in_use[adapter] = Occupancy(tenant, now)
        self._has[tenant] += 1
        return [adapter, *reopened]

    def finish(self, adapter: str | None) -> list[str]:
        """A request that started has ended. Returns the adapters that are now open."""
        self._slots.finish(adapter)
        if adapter is None or self._slots.uses(adapter):
            return []
        occupancy = self._in_use.pop(adapter)
        if adapter not in self._closed:
            self._lose(occupancy.tenant)
            return []
        self._closed.discard(adapter)
        heir = next(one for one, claim in self._claims.items() if claim.leaving == adapter)
        self._claims[heir] = SlotClaim(self._claims[heir].tenant, None)
        self._promised.add(heir)
        return [heir]

    def ask(self, adapter: str, tenant: str, now: float, *, impatient: bool) -> bool:
        """An adapter waits for a slot: give it a claim if there is one for it by now.

        Returns whether those behind it may ask too; if not, no slot is available. Check `open_to`
        afterwards: the slot may be empty already.
        """
        if adapter in self._in_use or adapter in self._claims:
            return True
        if (loser := self._to_lose_claim(tenant)) is not None:
            leaving = self._claims[loser].leaving
            self._drop_claim(loser)
        elif (leaving := self._to_close(tenant, now, impatient=impatient)) is not None:
            self._closed.add(leaving)
            self._lose(self._in_use[leaving].tenant)
        else:
            return False
        self._claims[adapter] = SlotClaim(tenant, leaving)
        self._has[tenant] += 1
        if leaving is None:
            self._promised.add(adapter)
        return True

    def forget(self, adapter: str) -> list[str]:
        """No request waits for this adapter's slot any more. Returns the adapters now open."""
        if (claim := self._claims.get(adapter)) is None:
            return []
        self._drop_claim(adapter)
        if claim.leaving is None:
            return []
        self._closed.discard(claim.leaving)
        self._has[self._in_use[claim.leaving].tenant] += 1
        return [claim.leaving]

    def _is_above_quota(self, tenant: str) -> bool:
        return self._has[tenant] > self._quota

    def _drop_claim(self, adapter: str) -> None:
        self._lose(self._claims.pop(adapter).tenant)
        self._promised.discard(adapter)

    def _lose(self, tenant: str) -> None:
        self._has[tenant] -= 1
        if not self._has[tenant]:
            del self._has[tenant]

    def _to_lose_claim(self, tenant: str) -> str | None:
        """The adapter whose claim `tenant`, if below its quota, takes over from one above its."""
        if self.at_quota(tenant):
            return None
        above = [one for one, claim in self._claims.items() if self._is_above_quota(claim.tenant)]
        return min(above, key=self._time_to_empty, default=None)

    def _time_to_empty(self, adapter: str) -> tuple[int, str]:
        leaving = self._claims[adapter].leaving
        return (self._slots.uses(leaving) if leaving else 0), adapter

    def _to_close(self, tenant: str, now: float, *, impatient: bool) -> str | None:
        may_close = [
            adapter
            for adapter, occupancy in self._in_use.items()
            if adapter not in self._closed and self._gives_way(occupancy, tenant, now, impatient)
        ]
        return min(may_close, key=self._closing_order, default=None)

    def _gives_way(self, occupancy: Occupancy, tenant: str, now: float, impatient: bool) -> bool:
        """Whether the adapter of this slot may be closed for one of `tenant`."""
        if occupancy.tenant != tenant:
            if self.at_quota(tenant):
                return False
            if self._is_above_quota(occupancy.tenant):
                return True
        return impatient and now - occupancy.since >= self._min_open_s

    def _closing_order(self, adapter: str) -> tuple[int, int, str]:
        return -self._has[self._in_use[adapter].tenant], self._slots.uses(adapter), adapter
