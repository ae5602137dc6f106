"""Whose turn it is at the engine's adapter slots. No engine, no loop; time is handed in.

Rules
    1. A request whose adapter has a slot needs none and may overtake one that waits for a slot.
    2. The overtaking is bounded. For an adapter that waits impatiently, one adapter in use is
       closed to newcomers, whoever they are. When the last request that it runs has ended, its
       slot is promised to the adapter that waits, and nobody else takes it.
    3. An adapter that takes a slot keeps it open for at least `turn_s`. With more adapters than
       slots, each would else be closed as soon as its first request had started, and the engine
       would run one request per slot: the thrash cliff.
    4. The adapter closed is one of the tenant that has most slots open; of those, the one with
       the fewest running requests, for it is empty first. The choice sticks.
    5. While another tenant waits for a slot, a tenant may not hold more than `quota` open ones:
       those above are closed at once, without patience or turn, and it may only close its own.
       While nobody else waits for one, it may take all.

So an adapter that waits has a slot at the latest after patience, a turn, and the longest answer
of the adapter that was closed for it, unless more adapters wait before it than there are slots.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from inference.agent.slots import Slots


@dataclass(frozen=True, slots=True)
class Turn:
    """An adapter in use: which tenant's request took the slot, and when."""

    tenant: str
    since: float


class Turns:
    """Who has the slots, and who gets the next."""

    def __init__(self, slots: Slots, *, quota: int | None, turn_s: float) -> None:
        """`quota` open slots for each tenant (None: all); times are in seconds."""
        if quota is not None and quota < 1:
            raise ValueError(f"a quota of {quota} slots would shut every tenant out")
        self._slots, self._turn_s = slots, turn_s
        self._quota = math.inf if quota is None else quota
        self._turns: dict[str, Turn] = {}
        self._open: Counter[str] = Counter()
        """How many adapters in use and not closed each tenant has."""
        self._closed_for: dict[str, str] = {}
        """By adapter that waits, the adapter in use that is closed for it."""
        self._closed: set[str] = set()
        self._promised: set[str] = set()

    def open_to(self, adapter: str | None) -> bool:
        """Whether a request of this adapter needs no slot of its own."""
        if adapter is None or adapter in self._promised:
            return True
        return adapter in self._turns and adapter not in self._closed

    def free_for(self, adapter: str | None) -> bool:
        """Whether a request of this adapter may start now."""
        if self.open_to(adapter):
            return True
        return adapter not in self._turns and self._slots.unused > len(self._promised)

    def at_quota(self, tenant: str) -> bool:
        """Whether this tenant leaves the next slot to others that wait for one."""
        return self._open[tenant] >= self._quota

    def start(self, adapter: str | None, tenant: str, now: float) -> list[str]:
        """A request starts; call `free_for` first. Returns the adapters that are open from now."""
        self._slots.start(adapter)
        if adapter is None or adapter in self._turns:
            return []
        self._turns[adapter] = Turn(tenant, now)
        self._open[tenant] += 1
        return [adapter, *self.forget(adapter)]

    def finish(self, adapter: str | None) -> list[str]:
        """A request that started has ended. Returns the adapters that are open from now."""
        self._slots.finish(adapter)
        if adapter is None or self._slots.uses(adapter):
            return []
        turn = self._turns.pop(adapter)
        if adapter not in self._closed:
            self._leave(turn.tenant)
            return []
        self._closed.discard(adapter)
        waiting = next(one for one, closed in self._closed_for.items() if closed == adapter)
        del self._closed_for[waiting]
        self._promised.add(waiting)
        return [waiting]

    def ask(self, adapter: str, tenant: str, now: float, *, impatient: bool) -> bool:
        """An adapter waits for a slot: have one closed for it if its time has come.

        Returns whether those behind it may ask too; if not, there is nothing to be had.
        """
        if adapter in self._turns or adapter in self._closed_for:
            return True
        if (leaving := self._to_close(tenant, now, impatient=impatient)) is None:
            return False
        self._closed_for[adapter] = leaving
        self._closed.add(leaving)
        self._leave(self._turns[leaving].tenant)
        return True

    def forget(self, adapter: str) -> list[str]:
        """Nobody waits for this adapter's slot any more. Returns the adapters open from now."""
        self._promised.discard(adapter)
        if (reopened := self._closed_for.pop(adapter, None)) is None:
            return []
        self._closed.discard(reopened)
        self._open[self._turns[reopened].tenant] += 1
        return [reopened]

    def _leave(self, tenant: str) -> None:
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]

    def _to_close(self, tenant: str, now: float, *, impatient: bool) -> str | None:
        may_close = [
            adapter
            for adapter, turn in self._turns.items()
            if adapter not in self._closed and self._gives_way(turn, tenant, now, impatient)
        ]
        return min(may_close, key=self._closing_order, default=None)

    def _gives_way(self, turn: Turn, tenant: str, now: float, impatient: bool) -> bool:
        """Whether the adapter of this turn may be closed for one of `tenant`."""
        if turn.tenant != tenant:
            if self.at_quota(tenant):
                return False
            if self._open[turn.tenant] > self._quota:
                return True
        return impatient and now - turn.since >= self._turn_s

    def _closing_order(self, adapter: str) -> tuple[int, int, str]:
        return -self._open[self._turns[adapter].tenant], self._slots.uses(adapter), adapter
