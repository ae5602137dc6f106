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

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from math import inf
from operator import itemgetter

from tenants.limits.amounts import Outcome, Part
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
from tenants.limits.counters import Counters, Gauge, Place
from tenants.limits.record import Record
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


class Book:
    """The counters. `run` is all there is to call."""

    def __init__(self) -> None:
        self._counters: dict[str, Counters] = {}
        """By scope."""
        self._places: dict[tuple[Scope, ...], Place] = {}
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
            case Settle() | Keep() | Release():
                self._resolve(command, now_ms)
            case Look(scopes=scopes):
                return Rooms(_left(self._place(scopes, now_ms // 1000), now_ms))
            case Count(scope=scope):
                return Counts(_counted(self._place((scope,), now_ms // 1000)))
            case Holds():
                return Ids(list(self._held.get(command.holder, ())))
            case Seed(budget=budget, tokens=tokens, cost=cost):
                self._of(budget.counters).purse(budget).seed(tokens, cost, now_ms)
            case _:
                self._renew(command, now_ms)
        return Done()

    # --- reserving -------------------------------------------------------------------------------

    def _charge(self, charge: Charge, now_ms: int) -> AnyAnswer:
        self._lease(charge.holder, now_ms + LEASE_MS)  # first: whoever asks is not dead
        self._reclaim(now_ms)
        if self._withdrawn and self._withdrawn.get(charge.id, now_ms) > now_ms:
            return Withdrawn()
        record = self._record(charge, now_ms // 1000)
        due = [purse for purse in record.place.purses if purse.due_ms <= now_ms]
        if unseeded := [purse.budget for purse in due if not purse.seeded]:
            return Unseeded(unseeded)
        for purse in due:
            purse.ask_again(now_ms)
        return self._judge(charge, record, [purse.budget for purse in due], now_ms)

    def _judge(
        self, charge: Charge, record: Record, due: list[Budget], now_ms: int
    ) -> Granted | Refused:
        second = now_ms // 1000
        part = record.part(charge, charge.output_tokens, second)
        if record.place.full(part):
            least = record.part(charge, charge.least_output_tokens, second)
            if full := record.place.full(least):
                return _refusal(full, least, due, now_ms)
            part = _most(charge, record, second)
        self._reserve(charge.id, record, part)
        return Granted(part.output_tokens, _left(record.place, now_ms), due)

    def _record(self, charge: Charge, second: int) -> Record:
        """The one under its id, or else a new one, which is not kept yet."""
        if (record := self._records.get(charge.id)) is None:
            return Record(charge.holder, charge.rate, self._place(charge.scopes, second))
        record.place.slide(second)
        return record

    def _place(self, scopes: tuple[Scope, ...], second: int) -> Place:
        """Where a request of this moment is counted, slid to it."""
        place = self._places.get(scopes)
        if place is None or place.day != second // DAY_S:
            counters = [self._of(scope.counters) for scope in scopes]
            place = self._places[scopes] = Place.of(counters, scopes, second)
        place.slide(second)
        return place

    def _of(self, name: str) -> Counters:
        """What is counted of this scope."""
        counters = self._counters.get(name)
        if counters is None:
            counters = self._counters[name] = Counters()
        return counters

    def _reserve(self, id: str, record: Record, part: Part) -> None:
        place = record.place
        for window, kind in place.windows:
            window.add(getattr(part, kind))
        for purse in place.purses:
            purse.reserve(part.tokens, part.cost)
        if id not in self._records:
            for streams in place.streams:
                streams.used += 1
            self._records[id] = record
            self._held.setdefault(record.holder, {})[id] = None
        record.add(part)

    # --- ending ----------------------------------------------------------------------------------

    def _resolve(self, command: Settle | Keep | Release, now_ms: int) -> None:
        record = self._records.get(command.id)
        if record is None:
            if isinstance(command, Release):
                self._withdrawn[command.id] = now_ms + WITHDRAWN_MS
            return
        match command:
            case Settle():
                outcome = record.used(command)
            case Keep():
                outcome = record.kept()
            case _:
                outcome = Outcome()
        self._end(command.id, outcome, now_ms)

    def _end(self, id: str, outcome: Outcome, now_ms: int) -> None:
        """Forget the reservation; the outcome is what stays counted of it."""
        record = self._records.pop(id)
        del self._held[record.holder][id]
        place = record.place
        place.slide(now_ms // 1000)
        for window, kind in place.windows:
            record.correct(window, kind, outcome)
        for streams in place.streams:
            streams.used -= 1
        for purse in place.purses:
            purse.end(record.tokens, record.cost, outcome)

    def _renew(self, renew: Renew, now_ms: int) -> None:
        self._lease(renew.holder, now_ms + renew.lease_ms)
        self._reclaim(now_ms)
        self._sweep(now_ms)

    def _lease(self, holder: str, until_ms: int) -> None:
        self._leases[holder] = until_ms
        if until_ms < self._reclaim_ms:
            self._reclaim_ms = until_ms

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

    def _sweep(self, now_ms: int) -> None:
        """Forget what counts nothing any more: empty windows, past budgets, withdrawn ids."""
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms, second = now_ms, now_ms // 1000
        self._places.clear()
        in_use = {c for record in self._records.values() for c in record.place.counters}
        self._counters = {
            name: counters
            for name, counters in self._counters.items()
            if not counters.sweep(second, in_use=counters in in_use)
        }
        self._withdrawn = {id: until for id, until in self._withdrawn.items() if until > now_ms}


def _most(charge: Charge, record: Record, second: int) -> Part:
    """What all limits have room for, where that is the least but not all of what is asked."""
    sizes = range(charge.least_output_tokens, charge.output_tokens + 1)

    def is_too_much(output_tokens: int) -> bool:
        return bool(record.place.full(record.part(charge, output_tokens, second)))

    most = sizes[bisect_left(sizes, True, key=is_too_much) - 1]
    return record.part(charge, most, second)


def _refusal(full: Iterable[Gauge], least: Part, due: list[Budget], now_ms: int) -> Refused:
    """By the limit to wait longest for, so that nobody comes back in vain."""
    waits = ((_wait_ms(gauge, getattr(least, gauge.kind), now_ms), gauge) for gauge in full)
    wait_ms, worst = max(waits, key=itemgetter(0))
    return Refused(
        scope=worst.scope,
        field=worst.field,
        used=worst.counter.used,
        requested=getattr(least, worst.kind),
        wait_ms=None if wait_ms == inf else int(wait_ms),
        renews_at=worst.budget.end if worst.budget else None,
        due=due,
    )


def _wait_ms(gauge: Gauge, requested: int, now_ms: int) -> float:
    """Until there is room, if nobody else comes; infinite where there never will be."""
    if gauge.budget is not None:
        return max(0, gauge.budget.end * 1000 - now_ms)
    if requested > gauge.limit:
        return inf
    if not isinstance(gauge.counter, Window):
        return STREAM_WAIT_MS
    over = gauge.counter.used + requested - gauge.limit
    return gauge.counter.leaves_at(over) * 1000 - now_ms


def _left(place: Place, now_ms: int) -> list[Left]:
    left = []
    for gauge, window in place.shown:
        room, reset_ms = gauge.limit - window.used, window.empty_at() * 1000 - now_ms
        room, reset_ms = room if room > 0 else 0, reset_ms if reset_ms > 0 else 0
        left.append(Left(gauge.field, gauge.limit, room, reset_ms))
    return left


def _counted(place: Place) -> list[Used]:
    return [Used(g.field, g.counter.used) for g in place.gauges if g.field in COUNTED]
