"""Everything that is counted of one scope, and how its limits read it. Sans-IO.

A request passes several limits of several scopes, and most scopes ask again and again. So what
follows from a scope alone (which counters its limits read, which budget periods it is in) is found
once a day and kept as a Place; a request goes through the gauges of its places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tenants.limits.commands import DAY_S, MINUTE_FIELDS, Budget, Period, Scope, start_of
from tenants.limits.purse import Purse
from tenants.limits.window import Window

PERIODS: tuple[Period, ...] = ("day", "month")

WEIGHTS = {
    "requests_per_minute": (1, 0, 0),
    "tokens_per_minute": (0, 1, 1),
    "prompt_tokens_per_minute": (0, 1, 0),
    "output_tokens_per_minute": (0, 0, 1),
    "concurrent_streams": (1, 0, 0),
    "tokens_per_day": (0, 1, 1),
    "tokens_per_month": (0, 1, 1),
    "cost_per_day": (0, 0, 0),
    "cost_per_month": (0, 0, 0),
}
"""How often a limit counts each request, prompt and output token; costs follow from prices."""


SHOWN = ("requests_per_minute", "tokens_per_minute")
"""The limits whose rooms are told to the client."""


class Counter(Protocol):
    """What a limit is compared with."""

    def at(self, second: int) -> int:
        """What is counted now, a unix time in seconds."""
        ...


class Streams:
    """Requests that run."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running = 0

    def at(self, second: int) -> int:
        return self.running


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a budget spent and reserved in tokens."""

    purse: Purse

    def at(self, second: int) -> int:
        return self.purse.tokens + self.purse.reserved_tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """The same in micro-units of the currency."""

    purse: Purse

    def at(self, second: int) -> int:
        return self.purse.cost + self.purse.reserved_cost


@dataclass(frozen=True, slots=True)
class Gauge:
    """One limit at its counter; `requests`, `prompt` and `output` are its WEIGHTS."""

    field: str
    limit: int
    counter: Counter
    requests: int
    prompt: int
    output: int
    budget: Budget | None
    in_money: bool


class Counters:
    """Of one scope, by its name; the scope's limits may change, what is counted stays."""

    def __init__(self) -> None:
        self.records = 0
        """Reservations that are counted here."""
        self.streams = Streams()
        self._windows: dict[str, Window] = {}
        self._purses: dict[Budget, Purse] = {}
        self._places: dict[Scope, Place] = {}

    def place(self, scope: Scope, second: int) -> Place:
        """Where a request of this moment is counted."""
        place = self._places.get(scope)
        if place is None or place.day != second // DAY_S:
            place = self._places[scope] = Place.of(self, scope, second)
        return place

    def window(self, name: str) -> Window:
        return self._windows.setdefault(name, Window())

    def purse(self, budget: Budget) -> Purse:
        """Empty and not seeded at first."""
        return self._purses.setdefault(budget, Purse())

    def sweep(self, second: int) -> bool:
        """Forget what counts nothing any more; whether that is all of it."""
        self._purses = {b: p for b, p in self._purses.items() if second < b.end + DAY_S}
        if not self.records:  # else they go on counting in the same windows
            self._places.clear()
            self._windows = {n: w for n, w in self._windows.items() if not w.gone(second)}
        return not (self.records or self._windows or self._purses)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reservation is counted: what its scope limits, on one day of UTC."""

    counters: Counters
    day: int
    gauges: tuple[Gauge, ...]
    shown: tuple[tuple[Gauge, Window], ...]
    """Those of SHOWN."""
    windows: dict[str, Window]
    """By limit."""
    purses: dict[Budget, Purse]
    streams: Streams | None
    """Where they are limited."""

    @classmethod
    def of(cls, counters: Counters, scope: Scope, second: int) -> Place:
        """In the periods of this moment."""
        limits = dict(scope.set_limits())
        budgets: dict[str, Budget] = {b.period: b for b in _budgets(scope, second)}
        gauges = tuple(_gauges(counters, scope, budgets))
        windows = {name: counters.window(name) for name in MINUTE_FIELDS if name in limits}
        return cls(
            counters,
            second // DAY_S,
            gauges,
            tuple((gauge, windows[gauge.field]) for gauge in gauges if gauge.field in SHOWN),
            windows,
            {budget: counters.purse(budget) for budget in budgets.values()},
            counters.streams if "concurrent_streams" in limits else None,
        )


def _budgets(scope: Scope, second: int) -> Iterator[Budget]:
    names = {name for name, _ in scope.set_limits()}
    for period in PERIODS:
        if not names.isdisjoint((f"tokens_per_{period}", f"cost_per_{period}")):
            yield Budget(scope.counters, period, start_of(period, second))


def _gauges(counters: Counters, scope: Scope, budgets: Mapping[str, Budget]) -> Iterator[Gauge]:
    for name, limit in scope.set_limits():
        kind, _, span = name.partition("_per_")
        budget = budgets.get(span)
        counter = _counter(counters, name, kind, budget)
        yield Gauge(name, limit, counter, *WEIGHTS[name], budget, kind == "cost")


def _counter(counters: Counters, name: str, kind: str, budget: Budget | None) -> Counter:
    if budget is not None:
        purse = counters.purse(budget)
        return Cost(purse) if kind == "cost" else Tokens(purse)
    return counters.streams if name == "concurrent_streams" else counters.window(name)
