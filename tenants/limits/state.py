"""The state of limits: every counter, reservation and lease of one store. Sans-IO.

Time is unix time in milliseconds that the caller passes. The script in `lua/` does the same on
Redis, command by command; both pass the same tests. Running the script in process as well would
cost more: with lupa's LuaJIT, passing a Charge in and its answer out takes 10 us, which is what a
Charge with its Settle takes here. The rules:

1. A Charge checks every limit of every scope before it changes anything. It reserves the most
   output tokens, up to what was asked, that all limits have room for; if that is less than the
   least that the request accepts, it reserves nothing.
2. A reservation is kept under the request's id. The first Settle, Keep or Release removes it; later
   ones do nothing.
3. Settling gives unused tokens back to the seconds in which they were reserved, the newest first,
   as far as these are still in the sliding window. Use beyond the reservation counts now.
4. A budget counts what was spent and what is reserved, in the period in which the request began.
   A budget that is not yet seeded from the ledger grants nothing.
5. A gateway's reservations last as long as its lease. After that each command gives back a few of
   them, except for the quantities that starting them took, such as the requests themselves. If
   other gateways reported a request's usage, that then counts as what it used; until then the
   request may still continue on another engine. Reported usage may be in the ledger already, so
   budgets count it as an estimate. A reservation that another gateway took over in time lasts as
   long as that gateway's lease.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from math import inf
from operator import itemgetter

from tenants.limits.budget import BudgetOutcome, LimitBudget
from tenants.limits.commands import (
    DAY_S,
    AnyAnswer,
    AnyCommand,
    BudgetPeriod,
    Charge,
    CommandDone,
    Count,
    CountedScope,
    Granted,
    Holds,
    Ids,
    Keep,
    Left,
    LimitCounts,
    LimitRefused,
    Peek,
    Release,
    Renew,
    Rooms,
    Seed,
    SettleReservation,
    SpentReport,
    Take,
    TakenOver,
    Unseeded,
    Used,
    Withdrawn,
)
from tenants.limits.counters import BoundLimit, BoundLimits, ScopeCounters
from tenants.limits.kinds import KINDS, Kinds
from tenants.limits.reservation import ReservedPart, StoredReservation
from tenants.limits.window import LimitWindow

LEASE_MS = 15_000
"""How long a gateway's reservations outlive it; it renews its lease three times in that time."""
RECLAIMED_AT_ONCE = 16
"""At most how many reservations of dead gateways one command gives back, to bound its cost."""
WITHDRAWN_MS = 60_000
"""How long a released id stays refused: longer than any command can be in transit."""
STREAM_WAIT_MS = 1_000
"""The wait that is suggested when concurrent streams are at their limit. When one will end is
unknown, so it is long compared to a round trip and short compared to an answer."""
SWEEP_MS = 60_000


class LimitState:
    """Counters, reservations and leases; each command is one call of `run`."""

    def __init__(self, kinds: Kinds = KINDS) -> None:
        self._kinds = kinds
        self._counters: dict[str, ScopeCounters] = {}
        """By scope id."""
        self._bound: dict[tuple[CountedScope, ...], BoundLimits] = {}
        self._reservations: dict[str, StoredReservation] = {}
        """By request id."""
        self._leases: dict[str, int] = {}
        """When each holder's lease ends, in unix milliseconds."""
        self._next_expiry_ms = 0
        """No lease ends before this time."""
        self._held: dict[str, dict[str, None]] = {}
        """The ids of each holder's reservations, the oldest first."""
        self._reported: dict[str, SpentReport] = {}
        """Usage reported through other gateways for reservations whose holder's lease is valid."""
        self._withdrawn: dict[str, int] = {}
        """Until when each released id stays refused."""
        self._swept_ms = 0

    def run(self, command: AnyCommand, now_ms: int) -> AnyAnswer:
        """Execute the command at the time `now_ms`."""
        match command:
            case Charge():
                return self._charge(command, now_ms)
            case SettleReservation() | Keep() | Release():
                self._resolve(command, now_ms)
            case SpentReport():
                self._hear(command, now_ms)
            case Take():
                return self._take(command)
            case Peek(scopes=scopes):
                return Rooms(_left(self._bind(scopes, now_ms // 1000), now_ms))
            case Count(scope=scope):
                return LimitCounts(_counted(self._bind((scope,), now_ms // 1000)))
            case Holds():
                return Ids(list(self._held.get(command.holder, ())))
            case Seed(budget=period, tokens=tokens, cost=cost):
                self._of(period.scope_id).budget(period).seed(tokens, cost, now_ms)
            case _:
                self._renew(command, now_ms)
        return CommandDone()

    # --- reserving -------------------------------------------------------------------------------

    def _charge(self, charge: Charge, now_ms: int) -> AnyAnswer:
        self._lease(charge.holder, now_ms + LEASE_MS)  # first: a holder that sends is alive
        self._reclaim(now_ms)
        if self._withdrawn and self._withdrawn.get(charge.id, now_ms) > now_ms:
            return Withdrawn()
        reservation = self._reservation(charge, now_ms // 1000)
        due = [budget for budget in reservation.bound.budgets if budget.due_ms <= now_ms]
        if unseeded := [budget.period for budget in due if not budget.seeded]:
            return Unseeded(unseeded)
        for budget in due:
            budget.refreshed(now_ms)
        return self._decide(charge, reservation, due, now_ms)

    def _decide(
        self, charge: Charge, reservation: StoredReservation, due: list[LimitBudget], now_ms: int
    ) -> Granted | LimitRefused:
        second, bound = now_ms // 1000, reservation.bound
        periods = [budget.period for budget in due]
        part = reservation.part(charge, charge.output_tokens, second)
        if bound.exceeded(part.amounts):
            least = reservation.part(charge, charge.least_output_tokens, second)
            if exceeded := bound.exceeded(least.amounts):
                return _refusal(exceeded, least, periods, now_ms)
            part = _most(charge, reservation, second)
        self._reserve(charge, reservation, part)
        return Granted(part.amounts["output_tokens"], _left(bound, now_ms), periods)

    def _reservation(self, charge: Charge, second: int) -> StoredReservation:
        """The reservation under the charge's id, or a new one, which is not stored yet."""
        if (found := self._reservations.get(charge.id)) is None:
            return StoredReservation(charge.holder, charge.rate, self._bind(charge.scopes, second))
        found.bound.slide(second)
        return found

    def _bind(self, scopes: tuple[CountedScope, ...], second: int) -> BoundLimits:
        """The limits of these scopes and their counters, slid to this second."""
        bound = self._bound.get(scopes)
        if bound is None or bound.day != second // DAY_S:
            counters = [self._of(scope.id) for scope in scopes]
            bound = BoundLimits.of(counters, scopes, second, self._kinds)
            self._bound[scopes] = bound
        bound.slide(second)
        return bound

    def _of(self, scope_id: str) -> ScopeCounters:
        """The counters of this scope, created on first use."""
        counters = self._counters.get(scope_id)
        if counters is None:
            counters = self._counters[scope_id] = ScopeCounters()
        return counters

    def _reserve(self, charge: Charge, reservation: StoredReservation, part: ReservedPart) -> None:
        bound, amounts = reservation.bound, part.amounts
        for window, measure in bound.windows:
            window.add(amounts.get(measure, 0))
        for budget in bound.budgets:
            budget.reserve(amounts["tokens"], amounts["cost"])
        if charge.id not in self._reservations:
            for streams in bound.streams:
                streams.used += 1
            self._reservations[charge.id] = reservation
            self._held.setdefault(reservation.holder, {})[charge.id] = None
        reservation.add(part, charge.quantities)

    # --- ending ----------------------------------------------------------------------------------

    def _resolve(self, command: SettleReservation | Keep | Release, now_ms: int) -> None:
        reservation = self._reservations.get(command.id)
        if reservation is None:
            if isinstance(command, Release):
                self._withdrawn[command.id] = now_ms + WITHDRAWN_MS
            return
        match command:
            case SettleReservation():
                outcome = reservation.used(command, known=command.id in self._reported)
            case Keep():
                outcome = reservation.kept()
            case _:
                outcome = BudgetOutcome()
        self._end(command.id, outcome, now_ms)

    def _hear(self, report: SpentReport, now_ms: int) -> None:
        reservation = self._reservations.get(report.id)
        if reservation is None:
            self._withdrawn[report.id] = now_ms + WITHDRAWN_MS
        elif self._leases.get(reservation.holder, 0) <= now_ms:
            self._end(report.id, reservation.used(report), now_ms)
            self._withdrawn[report.id] = now_ms + WITHDRAWN_MS
        elif report.output_tokens >= self._reported.get(report.id, report).output_tokens:
            self._reported[report.id] = report

    def _take(self, take: Take) -> TakenOver:
        reservation = self._reservations.get(take.id)
        if reservation is None:
            return TakenOver()
        del self._held[reservation.holder][take.id]
        reservation.holder = take.holder
        self._held.setdefault(take.holder, {})[take.id] = None
        return TakenOver(reservation.amount("output_tokens"))

    def _end(self, id: str, outcome: BudgetOutcome, now_ms: int) -> None:
        """Remove the reservation; the outcome is what stays counted of it."""
        reservation = self._reservations.pop(id)
        self._reported.pop(id, None)
        del self._held[reservation.holder][id]
        bound = reservation.bound
        bound.slide(now_ms // 1000)
        for window, measure in bound.windows:
            reservation.correct(window, measure, outcome)
        for streams in bound.streams:
            streams.used -= 1
        for budget in bound.budgets:
            budget.settle(reservation.amount("tokens"), reservation.amount("cost"), outcome)

    def _renew(self, renew: Renew, now_ms: int) -> None:
        self._lease(renew.holder, now_ms + renew.lease_ms)
        self._reclaim(now_ms)
        self._sweep(now_ms)

    def _lease(self, holder: str, until_ms: int) -> None:
        self._leases[holder] = until_ms
        if until_ms < self._next_expiry_ms:
            self._next_expiry_ms = until_ms

    def _reclaim(self, now_ms: int) -> None:
        """Give back some reservations of a holder whose lease has ended."""
        if now_ms < self._next_expiry_ms or not self._leases:
            return
        self._next_expiry_ms, holder = min(
            (until, holder) for holder, until in self._leases.items()
        )
        if self._next_expiry_ms > now_ms:
            return
        held = self._held.get(holder, {})
        for id in list(islice(held, RECLAIMED_AT_ONCE)):
            reservation, report = self._reservations[id], self._reported.get(id)
            used = (
                reservation.abandoned() if report is None else reservation.used(report, known=True)
            )
            self._end(id, used, now_ms)
        if not held:
            del self._leases[holder]
            self._held.pop(holder, None)

    # --- the rest --------------------------------------------------------------------------------

    def _sweep(self, now_ms: int) -> None:
        """Drop what no longer counts: empty windows, past budgets, expired withdrawn ids."""
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms, second = now_ms, now_ms // 1000
        self._bound.clear()
        in_use = {c for kept in self._reservations.values() for c in kept.bound.counters}
        self._counters = {
            scope_id: counters
            for scope_id, counters in self._counters.items()
            if not counters.sweep(second, in_use=counters in in_use)
        }
        self._withdrawn = {id: until for id, until in self._withdrawn.items() if until > now_ms}


def _most(charge: Charge, reservation: StoredReservation, second: int) -> ReservedPart:
    """The largest part that all limits have room for, given that the least of what is asked fits
    and all of it does not."""
    sizes = range(charge.least_output_tokens, charge.output_tokens + 1)

    def is_too_much(output_tokens: int) -> bool:
        part = reservation.part(charge, output_tokens, second)
        return bool(reservation.bound.exceeded(part.amounts))

    most = sizes[bisect_left(sizes, True, key=is_too_much) - 1]
    return reservation.part(charge, most, second)


def _refusal(
    exceeded: Iterable[BoundLimit], least: ReservedPart, due: list[BudgetPeriod], now_ms: int
) -> LimitRefused:
    """The refusal names the limit with the longest wait, so that a retry after it succeeds."""
    asked = least.amounts
    waits = ((_wait_ms(each, asked.get(each.kind.measure, 0), now_ms), each) for each in exceeded)
    wait_ms, worst = max(waits, key=itemgetter(0))
    return LimitRefused(
        scope=worst.scope,
        kind=worst.kind.name,
        used=worst.counter.used,
        requested=asked.get(worst.kind.measure, 0),
        wait_ms=None if wait_ms == inf else int(wait_ms),
        renews_at=worst.period.end if worst.period else None,
        due=due,
    )


def _wait_ms(bound: BoundLimit, requested: int, now_ms: int) -> float:
    """Milliseconds until there is room if no other request comes; infinite if there never is."""
    if bound.period is not None:
        return max(0, bound.period.end * 1000 - now_ms)
    if requested > bound.limit:
        return inf
    if not isinstance(bound.counter, LimitWindow):
        return STREAM_WAIT_MS
    over = bound.counter.used + requested - bound.limit
    return bound.counter.leaves_at(over) * 1000 - now_ms


def _left(bound: BoundLimits, now_ms: int) -> list[Left]:
    left = []
    for each, window in bound.shown:
        room, reset_ms = each.limit - window.used, window.empty_at() * 1000 - now_ms
        room, reset_ms = room if room > 0 else 0, reset_ms if reset_ms > 0 else 0
        left.append(Left(each.kind.name, each.limit, room, reset_ms))
    return left


def _counted(bound: BoundLimits) -> list[Used]:
    return [Used(each.kind.name, each.counter.used) for each in bound.limits if each.period is None]
