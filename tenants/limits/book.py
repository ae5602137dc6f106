"""The arithmetic of limits: every counter, reservation and lease of one store.

Sans-IO; time is unix time in milliseconds that the caller passes. The script in `lua/` does the
same on Redis, command by command; both pass the same tests. The rules:

1. A Charge looks at every limit of every scope before it changes anything. It reserves the most
   output tokens, up to what was asked, that all of them have room for; if that is less than the
   least that would do, it reserves nothing.
2. A reservation is one Record under the request's id. Whoever settles, keeps or releases it first
   removes it; later calls find nothing to do.
3. Settling gives unused tokens back to the seconds in which they were reserved, the newest first,
   as far as these are still in the window. What was used beyond the reservation counts now.
4. A budget counts what was spent and what is reserved, in the period in which the request began.
   One that was not seeded from the ledger yet lets nothing through.
5. A gateway's reservations stand as long as its lease. After that each command gives a few of them
   back, all but the requests themselves: those were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

from tenants.limits.commands import (
    COUNTED,
    DAY_S,
    AnyAnswer,
    AnyCommand,
    Budget,
    Charge,
    Count,
    Counts,
    Done,
    Granted,
    Holds,
    Ids,
    Keep,
    Left,
    Look,
    Refused,
    Release,
    Renew,
    Rooms,
    Scope,
    Seed,
    Settle,
    Unseeded,
    Used,
    Withdrawn,
)
from tenants.limits.purse import Purse
from tenants.limits.record import Outcome, Part, Record
from tenants.limits.window import Window

LEASE_MS = 15_000
"""How long a gateway's reservations outlive it; it renews three times as often."""
RECLAIMED_AT_ONCE = 16
"""Reservations of dead gateways that one command gives back: bounds what it costs."""
WITHDRAWN_MS = 60_000
"""How long a released id stays refused: longer than any command may be on its way."""
STREAM_WAIT_MS = 1_000
"""When to try again where streams are limited. Nobody knows when one ends: long against a round
trip, short against an answer."""
SWEEP_MS = 60_000
SHOWN = ("requests_per_minute", "tokens_per_minute")
"""The limits that Left tells of."""


class Check(NamedTuple):
    """One limit against one Charge. `room` is how many output tokens it allows, below 0: none."""

    scope: int
    field: str
    limit: int
    used: int
    requested: int
    room: float
    budget: Budget | None


def measure(field: str, left: int, charge: Charge, record: Record) -> tuple[int, float]:
    """What the charge asks of this limit at the least, and for how many output tokens there is
    room in what is left of it."""
    prompt_tokens = charge.prompt_tokens
    if field in ("requests_per_minute", "concurrent_streams", "prompt_tokens_per_minute"):
        asked = prompt_tokens if field == "prompt_tokens_per_minute" else charge.requests
        return asked, inf if not asked or asked <= left else -1
    if field.startswith("cost"):
        cost = record.cost(prompt_tokens, charge.least_output_tokens) - record.cost()
        return cost, record.affordable(prompt_tokens, charge.output_tokens, left)
    if field == "output_tokens_per_minute":
        prompt_tokens = 0
    return prompt_tokens + charge.least_output_tokens, left - prompt_tokens


class Book:
    """The counters. `run` is all there is to call."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], Window] = {}
        self._streams: Counter[str] = Counter()
        self._purses: dict[Budget, Purse] = {}
        self._records: dict[str, Record] = {}
        self._leases: dict[str, int] = {}
        """Until when each holder's reservations stand."""
        self._held: dict[str, dict[str, None]] = {}
        """The ids of each holder's reservations, the oldest first."""
        self._withdrawn: dict[str, int] = {}
        self._swept_ms = 0

    def run(self, command: AnyCommand, now_ms: int) -> AnyAnswer:
        """Do it, as of this moment."""
        match command:
            case Charge():
                return self._charge(command, now_ms)
            case Look():
                return Rooms(self._left(command.scopes, now_ms))
            case Count(scope=scope):
                return Counts(self._counted(scope, now_ms // 1000))
            case Holds():
                return Ids(list(self._held.get(command.holder, ())))
            case Seed(budget=budget, tokens=tokens, cost=cost):
                self._purses.setdefault(budget, Purse()).seed(tokens, cost, now_ms)
            case Renew():
                self._leases[command.holder] = now_ms + command.lease_ms
                self._reclaim(now_ms)
                self._sweep(now_ms)
            case _:
                self._resolve(command, now_ms)
        return Done()

    # --- reserving -------------------------------------------------------------------------------

    def _charge(self, charge: Charge, now_ms: int) -> AnyAnswer:
        self._reclaim(now_ms)
        if self._withdrawn.get(charge.id, now_ms) > now_ms:
            return Withdrawn()
        second = now_ms // 1000
        record = self._records.get(charge.id) or Record.of(charge, second)
        budgets = [budget for place in record.places for budget in place.budgets]
        if missing := [budget for budget in budgets if budget not in self._purses]:
            return Unseeded(missing)
        due = [budget for budget in budgets if self._purses[budget].is_due(now_ms)]
        checks = list(self._checks(charge, record, second))
        if refusals := [check for check in checks if check.room < charge.least_output_tokens]:
            return self._refusal(charge, refusals, due, now_ms)
        granted = int(min([charge.output_tokens, *(check.room for check in checks)]))
        part = Part(second, charge.requests, charge.prompt_tokens, granted)
        self._reserve(charge.id, record, part)
        self._leases[charge.holder] = now_ms + LEASE_MS
        return Granted(granted, self._left(charge.scopes, now_ms), due)

    def _checks(self, charge: Charge, record: Record, second: int) -> Iterator[Check]:
        for index, (scope, place) in enumerate(zip(charge.scopes, record.places, strict=True)):
            for name, limit in scope.set_limits():
                budget = next((b for b in place.budgets if name.endswith(b.period)), None)
                used = self._used(scope.counters, name, budget, second)
                asked, room = measure(name, limit - used, charge, record)
                yield Check(index, name, limit, used, asked, room, budget)

    def _used(self, counters: str, name: str, budget: Budget | None, second: int) -> int:
        """What is counted against this limit now."""
        if budget is not None:
            purse = self._purses[budget]
            if name.startswith("cost"):
                return purse.cost + purse.reserved_cost
            return purse.tokens + purse.reserved_tokens
        if name == "concurrent_streams":
            return self._streams[counters]
        return self._window(counters, name, second).used

    def _refusal(
        self, charge: Charge, refusals: Iterable[Check], due: list[Budget], now_ms: int
    ) -> Refused:
        """By the limit to wait longest for, so that nobody comes back in vain."""
        waits = [(self._wait_ms(charge.scopes[c.scope].counters, c, now_ms), c) for c in refusals]
        wait_ms, worst = max(waits, key=lambda wait: wait[0])
        return Refused(
            scope=worst.scope,
            field=worst.field,
            used=worst.used,
            requested=worst.requested,
            wait_ms=None if wait_ms == inf else int(wait_ms),
            renews_at=worst.budget.end if worst.budget else None,
            due=due,
        )

    def _wait_ms(self, counters: str, check: Check, now_ms: int) -> float:
        """Until there is room, if nobody else comes; infinite where there never will be."""
        if check.budget is not None:
            return max(0, check.budget.end * 1000 - now_ms)
        if check.requested > check.limit:
            return inf
        if check.field == "concurrent_streams":
            return STREAM_WAIT_MS
        window = self._window(counters, check.field, now_ms // 1000)
        return window.leaves_at(check.used + check.requested - check.limit) * 1000 - now_ms

    def _reserve(self, id: str, record: Record, part: Part) -> None:
        tokens = part.prompt_tokens + part.output_tokens
        cost = record.cost(part.prompt_tokens, part.output_tokens) - record.cost()
        for place in record.places:
            for name in place.minute_fields:
                self._window(place.counters, name, part.second).add(part.counted(name))
            if place.streams and id not in self._records:
                self._streams[place.counters] += 1
            for budget in place.budgets:
                self._purses[budget].reserve(tokens, cost)
        record.add(part)
        self._records[id] = record
        self._held.setdefault(record.holder, {})[id] = None

    # --- ending ----------------------------------------------------------------------------------

    def _resolve(self, command: Settle | Keep | Release, now_ms: int) -> None:
        record = self._records.get(command.id)
        if record is None:
            if isinstance(command, Release):
                self._withdrawn[command.id] = now_ms + WITHDRAWN_MS
            return
        match command:
            case Settle(_, prompt_tokens, cached_tokens, output_tokens):
                outcome = record.used(prompt_tokens, cached_tokens, output_tokens)
            case Keep():
                outcome = record.kept()
            case _:
                outcome = Outcome()
        self._end(command.id, outcome, now_ms)

    def _end(self, id: str, outcome: Outcome, now_ms: int) -> None:
        """Forget the reservation; the outcome is what stays counted of it."""
        record = self._records.pop(id)
        self._held[record.holder].pop(id)
        for place in record.places:
            for name in place.minute_fields:
                window = self._window(place.counters, name, now_ms // 1000)
                record.correct(window, name, outcome)
            if place.streams:
                self._streams[place.counters] -= 1
            for budget in place.budgets:
                if purse := self._purses.get(budget):
                    purse.end(record.tokens, record.cost(), outcome)

    def _reclaim(self, now_ms: int) -> None:
        """Give back some of what a dead holder had reserved."""
        if not self._leases:
            return
        until, holder = min((until, holder) for holder, until in self._leases.items())
        if until > now_ms:
            return
        held = self._held.get(holder, {})
        for id in list(islice(held, RECLAIMED_AT_ONCE)):
            made = Outcome(requests=self._records[id].requests, doubted=True)
            self._end(id, made, now_ms)
        if not held:
            del self._leases[holder]
            self._held.pop(holder, None)

    # --- the rest --------------------------------------------------------------------------------

    def _left(self, scopes: Iterable[Scope], now_ms: int) -> list[Left]:
        left = []
        for scope in scopes:
            for name, limit in scope.set_limits():
                if name in SHOWN:
                    window = self._window(scope.counters, name, now_ms // 1000)
                    reset_ms = max(0, window.empty_at() * 1000 - now_ms)
                    left.append(Left(name, limit, max(0, limit - window.used), reset_ms))
        return left

    def _counted(self, scope: Scope, second: int) -> list[Used]:
        return [
            Used(name, self._used(scope.counters, name, None, second))
            for name, _ in scope.set_limits()
            if name in COUNTED
        ]

    def _window(self, counters: str, name: str, second: int) -> Window:
        """The window of this limit, slid to the present."""
        window = self._windows.get((counters, name)) or self._new_window(counters, name)
        window.slide(second)
        return window

    def _new_window(self, counters: str, name: str) -> Window:
        return self._windows.setdefault((counters, name), Window())

    def _sweep(self, now_ms: int) -> None:
        """Forget what counts nothing any more: empty windows, past budgets, withdrawn ids."""
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms, second = now_ms, now_ms // 1000
        self._streams += Counter()  # drops what is zero
        self._windows = {k: w for k, w in self._windows.items() if not w.gone(second)}
        self._purses = {b: p for b, p in self._purses.items() if second < b.end + DAY_S}
        self._withdrawn = {id: until for id, until in self._withdrawn.items() if until > now_ms}
