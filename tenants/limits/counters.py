"""Everything that is counted of one scope, and how the limits of several read it. Sans-IO.

A request passes several limits of several scopes, and the same scopes ask again and again. So what
follows from them alone (which counters their limits read, which budget periods they are in) is
found once a day and kept as a Place; a request goes through the gauges of its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tenants.limits.amounts import KINDS, WITHOUT_OUTPUT, Part
from tenants.limits.commands import DAY_S, Budget, Period, Scope, start_of
from tenants.limits.purse import Purse
from tenants.limits.window import Window

PERIODS: tuple[Period, ...] = ("day", "month")

SHOWN = ("requests_per_minute", "tokens_per_minute")
"""The limits whose rooms are told to the client."""


class Counter(Protocol):
    """What a limit is compared with."""

    @property
    def used(self) -> int: ...


class Streams:
    """Requests that run."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a budget spent and reserved in tokens."""

    purse: Purse

    @property
    def used(self) -> int:
        return self.purse.tokens + self.purse.reserved_tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """The same in micro-units of the currency."""

    purse: Purse

    @property
    def used(self) -> int:
        return self.purse.whole_cost + self.purse.reserved_cost


@dataclass(frozen=True, slots=True)
class Gauge:
    """One limit at its counter: `field` of the scope with this index, which counts the `kind` of
    each Part."""

    scope: int
    field: str
    limit: int
    kind: str
    counter: Counter
    budget: Budget | None


class Counters:
    """Of one scope, by its name; the scope's limits may change, what is counted stays."""

    def __init__(self) -> None:
        self.streams = Streams()
        self._windows: dict[str, Window] = {}
        self._purses: dict[Budget, Purse] = {}

    def window(self, name: str) -> Window:
        return self._windows.setdefault(name, Window())

    def purse(self, budget: Budget) -> Purse:
        """Empty and not seeded at first."""
        return self._purses.setdefault(budget, Purse(budget))

    def counter(self, name: str, budget: Budget | None) -> Counter:
        """What the limit of this name is compared with."""
        if budget is not None:
            purse = self.purse(budget)
            return Cost(purse) if KINDS[name] == "cost" else Tokens(purse)
        return self.streams if name == "concurrent_streams" else self.window(name)

    def sweep(self, second: int, *, in_use: bool) -> bool:
        """Forget what counts nothing any more; whether that is all of it. Reservations go on
        counting in the windows that are in use."""
        self._purses = {b: p for b, p in self._purses.items() if second < b.end + DAY_S}
        if not in_use:
            self._windows = {n: w for n, w in self._windows.items() if not w.gone(second)}
        return not (in_use or self._windows or self._purses)


@dataclass(slots=True)
class Place:
    """Where requests of some scopes are counted: what these limit, on one day of UTC."""

    counters: Sequence[Counters]
    """Of each scope."""
    day: int
    gauges: tuple[Gauge, ...]
    windows: tuple[tuple[Window, str], ...]
    """With the kind that each counts."""
    shown: tuple[tuple[Gauge, Window], ...]
    """Those of SHOWN."""
    streams: tuple[Streams, ...]
    """Of each scope that limits them."""
    purses: tuple[Purse, ...]
    second: int = 0
    """To which the windows were slid."""

    @classmethod
    def of(cls, counters: Sequence[Counters], scopes: Sequence[Scope], second: int) -> Place:
        """In the periods of this moment."""
        budgets = [_budgets(scope, second) for scope in scopes]
        gauges = [
            gauge
            for index, scope in enumerate(scopes)
            for gauge in _gauges(index, scope, counters[index], budgets[index])
        ]
        windows = [(g, g.counter) for g in gauges if isinstance(g.counter, Window)]
        return cls(
            counters,
            second // DAY_S,
            tuple(gauges),
            tuple((window, gauge.kind) for gauge, window in windows),
            tuple((gauge, window) for gauge, window in windows if gauge.field in SHOWN),
            tuple(g.counter for g in gauges if isinstance(g.counter, Streams)),
            tuple(
                counted.purse(budget)
                for counted, found in zip(counters, budgets, strict=True)
                for budget in found.values()
            ),
        )

    def slide(self, second: int) -> None:
        """Let go of what is over a minute old: first of all, with each command."""
        if second != self.second:
            self.second = second
            for window, _ in self.windows:
                window.slide(second)

    def full(self, asked: Part) -> list[Gauge]:
        """The limits without room for it. Those of requests and prompts let pass what asks none."""
        return [
            gauge
            for gauge in self.gauges
            if gauge.counter.used + (amount := getattr(asked, gauge.kind)) > gauge.limit
            and (amount or gauge.kind not in WITHOUT_OUTPUT)
        ]


def _budgets(scope: Scope, second: int) -> dict[str, Budget]:
    """Those that are limited, by their period."""
    names = {name for name, _ in scope.set_limits()}
    return {
        period: Budget(scope.counters, period, start_of(period, second))
        for period in PERIODS
        if not names.isdisjoint((f"tokens_per_{period}", f"cost_per_{period}"))
    }


def _gauges(
    index: int, scope: Scope, counters: Counters, budgets: Mapping[str, Budget]
) -> Iterator[Gauge]:
    for name, limit in scope.set_limits():
        budget = budgets.get(name.rpartition("_per_")[2])
        yield Gauge(index, name, limit, KINDS[name], counters.counter(name, budget), budget)
