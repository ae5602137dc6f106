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

from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from operator import itemgetter
from typing import NamedTuple

from tenants.limits.commands import (
    COUNTED,
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
from tenants.limits.counters import Counters, Gauge, Place
from tenants.limits.outcome import Outcome
from tenants.limits.record import Part, Record
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


class Full(NamedTuple):
    """A limit without room for the least that a Charge asks for."""

    scope: int
    gauge: Gauge
    used: int
    requested: int


def room_at(gauge: Gauge, used: int, charge: Charge, record: Record) -> float:
    """How many output tokens this limit has room for; below 0: not even for the prompt."""
    left = gauge.limit - used
    if gauge.in_money:
        return record.affordable(charge.prompt_tokens, charge.output_tokens, left)
    at_once = gauge.requests * charge.requests + gauge.prompt * charge.prompt_tokens
    if gauge.output:
        return left - at_once
    return inf if not at_once or at_once <= left else -1


def least_at(gauge: Gauge, charge: Charge, record: Record) -> int:
    """What the charge asks of this limit at the least."""
    prompt_tokens, output_tokens = charge.prompt_tokens, charge.least_output_tokens
    if gauge.in_money:
        return record.cost(prompt_tokens, output_tokens) - record.cost()
    return (
        gauge.requests * charge.requests
        + gauge.prompt * prompt_tokens
        + gauge.output * output_tokens
    )


class Book:
    """The counters. `run` is all there is to call."""

    def __init__(self) -> None:
        self._counters: dict[str, Counters] = {}
        """By scope."""
        self._records: dict[str, Record] = {}
        self._leases: dict[str, int] = {}
        """Until when each holder's reservations stand."""
        self._reclaim_ms = 0
        """No lease ends before that."""
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
                return Rooms(list(_left(self._places(command.scopes, now_ms // 1000), now_ms)))
            case Count(scope=scope):
                (place,) = self._places([scope], now_ms // 1000)
                return Counts(_counted(place, now_ms))
            case Holds():
                return Ids(list(self._held.get(command.holder, ())))
            case Seed(budget=budget, tokens=tokens, cost=cost):
                self._of(budget.counters).purse(budget).seed(tokens, cost, now_ms)
            case Renew():
                self._lease(command.holder, now_ms + command.lease_ms)
                self._reclaim(now_ms)
                self._sweep(now_ms)
            case _:
                self._resolve(command, now_ms)
        return Done()

    # --- reserving -------------------------------------------------------------------------------

    def _charge(self, charge: Charge, now_ms: int) -> AnyAnswer:
        self._reclaim(now_ms)
        if self._withdrawn and self._withdrawn.get(charge.id, now_ms) > now_ms:
            return Withdrawn()
        second = now_ms // 1000
        record = self._records.get(charge.id) or self._new_record(charge, second)
        purses = [each for place in record.places for each in place.purses.items()]
        if missing := [budget for budget, purse in purses if not purse.seeded]:
            return Unseeded(missing)
        due = [budget for budget, purse in purses if purse.is_due(now_ms)]
        granted, full = _judge(charge, record, second)
        if full:
            return _refusal(full, due, now_ms)
        part = Part(second, charge.requests, charge.prompt_tokens, granted)
        self._reserve(charge.id, record, part)
        self._lease(charge.holder, now_ms + LEASE_MS)
        return Granted(granted, list(_left(record.places, now_ms)), due)

    def _new_record(self, charge: Charge, second: int) -> Record:
        return Record(charge.holder, charge.rate, self._places(charge.scopes, second))

    def _of(self, name: str) -> Counters:
        """What is counted of this scope."""
        counters = self._counters.get(name)
        if counters is None:
            counters = self._counters[name] = Counters()
        return counters

    def _reserve(self, id: str, record: Record, part: Part) -> None:
        tokens = part.prompt_tokens + part.output_tokens
        cost = record.cost(part.prompt_tokens, part.output_tokens) - record.cost()
        is_new = id not in self._records
        for place in record.places:
            place.counters.records += is_new
            for name, window in place.windows.items():
                window.add(part.counted(name))
            if place.streams is not None:
                place.streams.running += is_new
            for purse in place.purses.values():
                purse.reserve(tokens, cost)
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
        del self._held[record.holder][id]
        second, cost = now_ms // 1000, record.cost()
        for place in record.places:
            place.counters.records -= 1
            for name, window in place.windows.items():
                window.slide(second)
                record.correct(window, name, outcome)
            if place.streams is not None:
                place.streams.running -= 1
            for purse in place.purses.values():
                purse.end(record.tokens, cost, outcome)

    def _lease(self, holder: str, until_ms: int) -> None:
        self._leases[holder] = until_ms
        self._reclaim_ms = min(self._reclaim_ms, until_ms)

    def _reclaim(self, now_ms: int) -> None:
        """Give back some of what a dead holder had reserved."""
        if now_ms < self._reclaim_ms or not self._leases:
            return
        self._reclaim_ms, holder = min((until, holder) for holder, until in self._leases.items())
        if self._reclaim_ms > now_ms:
            return
        held = self._held.get(holder, {})
        for id in list(islice(held, RECLAIMED_AT_ONCE)):
            made = Outcome(requests=self._records[id].requests, doubted=True)
            self._end(id, made, now_ms)
        if not held:
            del self._leases[holder]
            self._held.pop(holder, None)

    # --- the rest --------------------------------------------------------------------------------

    def _places(self, scopes: Iterable[Scope], second: int) -> list[Place]:
        return [self._of(scope.counters).place(scope, second) for scope in scopes]

    def _sweep(self, now_ms: int) -> None:
        """Forget what counts nothing any more: empty windows, past budgets, withdrawn ids."""
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms, second = now_ms, now_ms // 1000
        self._counters = {name: c for name, c in self._counters.items() if not c.sweep(second)}
        self._withdrawn = {id: until for id, until in self._withdrawn.items() if until > now_ms}


def _judge(charge: Charge, record: Record, second: int) -> tuple[int, list[Full]]:
    """How many output tokens all limits have room for, and those that have too little."""
    granted: float = charge.output_tokens
    least = charge.least_output_tokens
    full = []
    for index, place in enumerate(record.places):
        for gauge in place.gauges:
            used = gauge.counter.at(second)
            room = room_at(gauge, used, charge, record)
            if room < least:
                full.append(Full(index, gauge, used, least_at(gauge, charge, record)))
            elif room < granted:
                granted = room
    return int(granted), full


def _refusal(full: Iterable[Full], due: list[Budget], now_ms: int) -> Refused:
    """By the limit to wait longest for, so that nobody comes back in vain."""
    wait_ms, worst = max(((_wait_ms(each, now_ms), each) for each in full), key=itemgetter(0))
    budget = worst.gauge.budget
    return Refused(
        scope=worst.scope,
        field=worst.gauge.field,
        used=worst.used,
        requested=worst.requested,
        wait_ms=None if wait_ms == inf else int(wait_ms),
        renews_at=budget.end if budget else None,
        due=due,
    )


def _wait_ms(full: Full, now_ms: int) -> float:
    """Until there is room, if nobody else comes; infinite where there never will be."""
    gauge = full.gauge
    if gauge.budget is not None:
        return max(0, gauge.budget.end * 1000 - now_ms)
    if full.requested > gauge.limit:
        return inf
    if not isinstance(gauge.counter, Window):
        return STREAM_WAIT_MS
    over = full.used + full.requested - gauge.limit
    return gauge.counter.leaves_at(over) * 1000 - now_ms


def _left(places: Iterable[Place], now_ms: int) -> Iterator[Left]:
    for place in places:
        for gauge, window in place.shown:
            left = gauge.limit - window.at(now_ms // 1000)
            reset_ms = window.empty_at() * 1000 - now_ms
            yield Left(gauge.field, gauge.limit, max(0, left), max(0, reset_ms))


def _counted(place: Place, now_ms: int) -> list[Used]:
    return [
        Used(gauge.field, gauge.counter.at(now_ms // 1000))
        for gauge in place.gauges
        if gauge.field in COUNTED
    ]
