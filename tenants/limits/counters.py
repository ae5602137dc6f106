"""The counters of one scope, and the limits of several scopes bound to their counters. Sans-IO.

A request passes several limits of several scopes, and the same sets of scopes recur. So what
depends on them alone (the counters that their limits are compared with, the budget periods) is
looked up once a day and cached as BoundLimits, which each request is checked against.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tenants.limits.budget import Amounts, LimitBudget
from tenants.limits.commands import DAY_S, BudgetPeriod, CountedScope, start_of
from tenants.limits.kinds import PERIODS, Kinds, LimitKind
from tenants.limits.window import LimitWindow


class LimitCounter(Protocol):
    """The figure that a limit is compared with."""

    @property
    def used(self) -> int: ...


class Streams:
    """Number of requests that run."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Tokens that a budget has spent and reserved."""

    budget: LimitBudget

    @property
    def used(self) -> int:
        return self.budget.tokens + self.budget.reserved_tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost that a budget has spent and reserved, in micro-units of the currency."""

    budget: LimitBudget

    @property
    def used(self) -> int:
        return self.budget.whole_cost + self.budget.reserved_cost


@dataclass(frozen=True, slots=True)
class BoundLimit:
    """One limit of the scope with the index `scope`, and its counter."""

    scope: int
    kind: LimitKind
    limit: int
    counter: LimitCounter
    period: BudgetPeriod | None


class ScopeCounters:
    """The counters of one scope; they stay when the scope's limits change."""

    def __init__(self) -> None:
        self.streams = Streams()
        self._windows: dict[str, LimitWindow] = {}
        """By measure."""
        self._budgets: dict[BudgetPeriod, LimitBudget] = {}

    def window(self, measure: str) -> LimitWindow:
        return self._windows.setdefault(measure, LimitWindow())

    def budget(self, period: BudgetPeriod) -> LimitBudget:
        """The budget of this period; a new one is empty and not seeded."""
        return self._budgets.setdefault(period, LimitBudget(period))

    def counter(self, kind: LimitKind, period: BudgetPeriod | None) -> LimitCounter:
        """The counter that a limit of this kind is compared with."""
        if period is not None:
            budget = self.budget(period)
            return Cost(budget) if kind.is_money else TokenCounter(budget)
        return self.streams if kind.window == "concurrent" else self.window(kind.measure)

    def sweep(self, second: int, *, in_use: bool) -> bool:
        """Drop budgets and windows that no longer count; returns whether none are left. `in_use`:
        reservations still refer to the windows, so these are kept."""
        self._budgets = {p: b for p, b in self._budgets.items() if second < p.end + DAY_S}
        if not in_use:
            self._windows = {m: w for m, w in self._windows.items() if not w.expired(second)}
        return not (in_use or self._windows or self._budgets)


@dataclass(slots=True)
class BoundLimits:
    """The limits of some scopes, bound to their counters for one day of UTC."""

    counters: Sequence[ScopeCounters]
    """One per scope."""
    day: int
    limits: tuple[BoundLimit, ...]
    windows: tuple[tuple[LimitWindow, str], ...]
    """Each window with the measure that it counts."""
    shown: tuple[tuple[BoundLimit, LimitWindow], ...]
    """The limits that feed a header."""
    streams: tuple[Streams, ...]
    """One for each scope that limits concurrent streams."""
    budgets: tuple[LimitBudget, ...]
    second: int = 0
    """The unix time to which the windows were slid."""

    @classmethod
    def of(
        cls,
        counters: Sequence[ScopeCounters],
        scopes: Sequence[CountedScope],
        second: int,
        kinds: Kinds,
    ) -> BoundLimits:
        """Bind the limits in the budget periods of this second. Ignores limits of unknown kinds."""
        periods = [_periods(scope, second, kinds) for scope in scopes]
        limits = [
            limit
            for index, scope in enumerate(scopes)
            for limit in _bound(index, scope, counters[index], periods[index], kinds)
        ]
        windows = [
            (limit, limit.counter) for limit in limits if isinstance(limit.counter, LimitWindow)
        ]
        return cls(
            counters,
            second // DAY_S,
            tuple(limits),
            tuple((window, limit.kind.measure) for limit, window in windows),
            tuple((limit, window) for limit, window in windows if limit.kind.header),
            tuple(each.counter for each in limits if isinstance(each.counter, Streams)),
            tuple(
                counted.budget(period)
                for counted, found in zip(counters, periods, strict=True)
                for period in found.values()
            ),
        )

    def slide(self, second: int) -> None:
        """Drop what is more than a minute old; must be called before all else in each command."""
        if second != self.second:
            self.second = second
            for window, _ in self.windows:
                window.slide(second)

    def exceeded(self, asked: Amounts) -> list[BoundLimit]:
        """The limits without room for `asked`. A limit that output does not count against is only
        exceeded if some of its measure is asked."""
        return [
            each
            for each in self.limits
            if each.counter.used + (amount := asked.get(each.kind.measure, 0)) > each.limit
            and (amount or each.kind.bounds_output)
        ]


def _periods(scope: CountedScope, second: int, kinds: Kinds) -> dict[str, BudgetPeriod]:
    """The periods for which the scope has a budget."""
    windows = {kinds[name].window for name in scope.limits if name in kinds}
    return {
        period: BudgetPeriod(scope.id, period, start_of(period, second))
        for period in PERIODS
        if period in windows
    }


def _bound(
    index: int,
    scope: CountedScope,
    counters: ScopeCounters,
    periods: Mapping[str, BudgetPeriod],
    kinds: Kinds,
) -> Iterator[BoundLimit]:
    for kind in kinds.values():
        if (limit := scope.limits.get(kind.name)) is not None:
            period = periods.get(kind.window)
            yield BoundLimit(index, kind, limit, counters.counter(kind, period), period)
