"""Plots as SVG: lines over numbers, with axes and a legend. The page's style has the colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 68, 16, 12, 44
TICKS = 4


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """`log`: the logarithm is linear; only positive values have a place then."""

    name: str
    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, name: str, values: Sequence[float], *, log: bool = False) -> PlotAxis:
        """From the least to the greatest of the values; from 0 if linear."""
        usable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(usable), max(usable)) if usable else (1.0, 10.0)
        if log:
            return cls(name, *_powers(low, high), True)
        return cls(name, 0.0, high or 1.0)

    def share(self, value: float) -> float:
        """The place on the axis, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Powers of ten, or round numbers."""
        if self.log:
            powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [10.0**power for power in powers]
        raw = (self.high - self.low) / TICKS
        unit = 10 ** math.floor(math.log10(raw))
        step = next(unit * n for n in (1, 2, 5, 10) if unit * n >= raw)
        return [self.low + step * n for n in range(int((self.high - self.low) / step) + 1)]


def _powers(low: float, high: float) -> tuple[float, float]:
    """The powers of ten around these, at least a factor of ten apart."""
    below, above = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return 10.0**below, 10.0 ** max(above, below + 1)


@dataclass(frozen=True, slots=True)
class PlotLine:
    """Points in order of x; what has no place on an axis is left out."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(slots=True)
class Plot:
    """Some lines over the same axes."""

    title: str
    x: PlotAxis
    y: PlotAxis
    lines: Sequence[PlotLine]
    _parts: list[str] = field(default_factory=list)

    def svg(self) -> str:
        self._parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        ]
        for value in self.x.ticks():
            at = self._x(value)
            self._add(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            self._text(at, HEIGHT - BOTTOM + 17, "middle", _tick(value))
        for value in self.y.ticks():
            at = self._y(value)
            self._add(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
            self._text(LEFT - 6, at + 4, "end", _tick(value))
        self._text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "middle", self.x.name)
        self._add(
            f'<text x="14" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" '
            f'transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2})">{escape(self.y.name)}</text>'
        )
        for number, line in enumerate(self.lines):
            places = [f"{self._x(x)},{self._y(y)}" for x, y in line.points if self._has(x, y)]
            self._add(f'<polyline class="line c{number}" points="{" ".join(places)}"/>')
        return "".join([*self._parts, "</svg>"])

    def legend(self) -> str:
        """The lines' names, as HTML."""
        names = (
            f'<li><span class="mark m{number}"></span>{escape(line.name)}</li>'
            for number, line in enumerate(self.lines)
        )
        return f'<ul class="legend">{"".join(names)}</ul>'

    def _has(self, x: float, y: float) -> bool:
        pairs = ((self.x, x), (self.y, y))
        return all(math.isfinite(v) and (v > 0 or not axis.log) for axis, v in pairs)

    def _x(self, value: float) -> float:
        return round(LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT), 1)

    def _y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - BOTTOM - TOP), 1)

    def _text(self, x: float, y: float, anchor: str, text: str) -> None:
        self._add(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    def _add(self, part: str) -> None:
        self._parts.append(part)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
