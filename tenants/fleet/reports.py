"""What a gateway reports over its internal interface, and how the reports of several are merged.

An engine is connected to every gateway and reports the same to each, a moment earlier or later.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from inference.gateway.measuring.history import STEP_S, LoadSample, Point, RequestRate
from inference.gateway.measuring.start_failures import StartFailure

Engine = dict[str, Any]
"""In the form of `inference.gateway.hub.Hub.snapshot`."""


class GatewayReport(msgspec.Struct):
    """The state of one gateway at one moment."""

    engines: list[Engine]
    rates: dict[str, RequestRate]
    """By engine, for engines that have been known for long enough."""
    limits_degraded: bool
    """Whether Redis is down."""
    start_failures: list[StartFailure] = []


class CountedReport(msgspec.Struct):
    """What counts against limits now, by the limit's name."""

    shared: bool
    """Whether all gateways count together, rather than this one alone."""
    used: dict[str, int]


class ReportedFleet(msgspec.Struct, frozen=True):
    """Every engine that any gateway knows."""

    engines: list[Engine] = []
    """Ordered by id."""
    rates: dict[str, RequestRate] = {}
    limits_degraded: bool = False
    start_failures: list[StartFailure] = []
    """Of engines that are not connected to any gateway, ordered by engine."""
    silent: list[str] = []
    """Gateways that count as alive but did not answer: what only they know is missing."""


def merged(reports: Iterable[GatewayReport], silent: Sequence[str] = ()) -> ReportedFleet:
    """Merge the reports of several gateways; an engine that several have appears once."""
    engines: dict[str, Engine] = {}
    rates: dict[str, RequestRate] = {}
    degraded = False
    failures: dict[str, StartFailure] = {}
    for report in reports:
        degraded |= report.limits_degraded
        rates = report.rates | rates
        for engine in report.engines:
            known = engines.get(engine["id"])
            engines[engine["id"]] = _merged(known, engine) if known else engine
        for failure in report.start_failures:
            known_failure = failures.get(failure.engine, failure)
            failures[failure.engine] = max(known_failure, failure, key=lambda one: one.at)
    return ReportedFleet(
        [engines[id] for id in sorted(engines)],
        rates,
        degraded,
        [failures[id] for id in sorted(failures.keys() - engines.keys())],
        list(silent),
    )


def _merged(one: Engine, other: Engine) -> Engine:
    """The later of two sightings of an engine: what it has counted since its start only grows."""
    later = max(one, other, key=lambda each: (each["prompt_tokens"], each["completion_tokens"]))
    return later | {
        "connected_at": min(one["connected_at"], other["connected_at"]),
        "draining": one["draining"] or other["draining"],
    }


def merged_points(histories: Iterable[Sequence[Point]]) -> list[Point]:
    """Merge the histories of several gateways: each step has what any of them saw."""
    steps: dict[int, dict[str, LoadSample]] = {}
    for history in histories:
        for point in history:
            loads = steps.setdefault(int(point.at // STEP_S), {})
            for id, load in point.loads.items():
                if id not in loads or loads[id].rate is None:
                    loads[id] = load
    return [Point(step * STEP_S, steps[step]) for step in sorted(steps)]


def merged_counts(counts: Iterable[CountedReport]) -> Mapping[str, int]:
    """Merge counts: shared ones are taken once, those of single gateways are added up."""
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
