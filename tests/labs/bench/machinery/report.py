"""Figures of several rounds, and their tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from rich.console import Console
from rich.table import Table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One value per round."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return median(self.values)

    def over(self, other: Figure) -> Figure:
        """The ratio to the other, round by round."""
        return Figure.of([a / b for a, b in zip(self.values, other.values, strict=True)])

    def minus(self, other: Figure) -> Figure:
        """The difference, round by round."""
        return Figure.of([a - b for a, b in zip(self.values, other.values, strict=True)])

    def __str__(self) -> str:
        shown = [_short(value) for value in (self.median, min(self.values), max(self.values))]
        return "{} ({} to {})".format(*shown)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report. The median is compared with the target `at_most` or `at_least`."""

    what: str
    figure: Figure
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def verdict(self) -> str:
        """The target and whether it was met; empty without a target."""
        if self.at_most is not None:
            met = self.figure.median <= self.at_most
            return f"at most {self.at_most:g}: {'met' if met else 'MISSED'}"
        if self.at_least is not None:
            met = self.figure.median >= self.at_least
            return f"at least {self.at_least:g}: {'met' if met else 'MISSED'}"
        return ""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one benchmark."""

    title: str
    rows: list[Row]
    notes: str = ""

    def show(self, console: Console) -> None:
        """Print it as a table."""
        table = Table("what", "median (min to max)", "unit", "target", title=self.title)
        for row in self.rows:
            table.add_row(row.what, str(row.figure), row.unit, row.verdict)
        console.print(table)
        if self.notes:
            console.print(self.notes, style="dim", markup=False)


async def take_turns(
    rounds: int, sides: Mapping[str, Callable[[], Awaitable[T]]]
) -> dict[str, list[T]]:
    """Run every side once, then all again, `rounds` times; returns each side's results in order.
    Tells on standard error how far it is."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, run in sides.items():
            began = time.monotonic()
            found[name].append(await run())
            took = f"{time.monotonic() - began:.1f} s"
            print(f"{name}, {number} of {rounds}: {took}", file=sys.stderr, flush=True)
    return found
