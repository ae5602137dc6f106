"""What a gateway tells of itself over its internal interface, and how several are put together.

An engine is connected to every gateway and tells each of them the same of itself, a moment earlier
or later. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from inference.gateway.fleet.history import STEP_S, Load, Point, Rate

Engine = dict[str, Any]
"""As `inference.gateway.fleet.hub.Hub.snapshot` tells it."""


class Report(msgspec.Struct):
    """One gateway at a moment."""

    engines: list[Engine]
    rates: dict[str, Rate]
    """By engine; those known for long enough."""
    limits_degraded: bool
    """Redis is away."""


class Counted(msgspec.Struct):
    """What counts against limits now, by the limit's name."""

    shared: bool
    """By all gateways together; else by this one alone."""
    used: dict[str, int]


class Fleet(msgspec.Struct, frozen=True):
    """Every engine, whichever gateway was asked."""

    engines: list[Engine] = []
    """By id."""
    rates: dict[str, Rate] = {}
    limits_degraded: bool = False
    silent: list[str] = []
    """Gateways that are said to be alive and did not answer: what only they know is missing."""


def merged(reports: Iterable[Report], silent: Sequence[str] = ()) -> Fleet:
    """What these gateways tell together; an engine that several have is there once."""
    engines: dict[str, Engine] = {}
    rates: dict[str, Rate] = {}
    degraded = False
    for report in reports:
        degraded |= report.limits_degraded
        rates = report.rates | rates
        for engine in report.engines:
            known = engines.get(engine["id"])
            engines[engine["id"]] = _merged(known, engine) if known else engine
    return Fleet([engines[id] for id in sorted(engines)], rates, degraded, list(silent))


def _merged(one: Engine, other: Engine) -> Engine:
    """The later of two sightings of an engine: what it has counted since its start only grows."""
    later = max(one, other, key=lambda seen: (seen["prompt_tokens"], seen["completion_tokens"]))
    return later | {
        "connected_at": min(one["connected_at"], other["connected_at"]),
        "draining": one["draining"] or other["draining"],
    }


def merged_points(histories: Iterable[Sequence[Point]]) -> list[Point]:
    """The past as these gateways saw it together: of each step what any of them saw."""
    steps: dict[int, dict[str, Load]] = {}
    for history in histories:
        for point in history:
            loads = steps.setdefault(int(point.at // STEP_S), {})
            for id, load in point.loads.items():
                if id not in loads or loads[id].rate is None:
                    loads[id] = load
    return [Point(step * STEP_S, steps[step]) for step in sorted(steps)]


def merged_counts(counts: Iterable[Counted]) -> Mapping[str, int]:
    """What counts in all: what is counted together once, what each counts by itself added up."""
    together: dict[str, int] = {}
    apart: dict[str, int] = {}
    for counted in counts:
        for name, amount in counted.used.items():
            if counted.shared:
                together[name] = max(together.get(name, 0), amount)
            else:
                apart[name] = apart.get(name, 0) + amount
    return {
        name: together.get(name, 0) + apart.get(name, 0)
        for name in (*together, *(one for one in apart if one not in together))
    }
