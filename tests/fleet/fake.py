"""A fake of the gateways that pages query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.gateway.measuring.history import Point, RequestRate
from inference.gateway.measuring.start_failures import StartFailure
from inference.interfaces.directory import Limits
from tenants.fleet.reports import ReportedFleet
from tests.limits.asking import COUNTED


@dataclass
class FakeGateways:
    """Implements `tenants.fleet.gateways.Gateways`; reports what a test puts into it."""

    engines: list[dict[str, Any]] = field(default_factory=list)
    rates: dict[str, RequestRate] = field(default_factory=dict)
    limits_degraded: bool = False
    start_failures: list[StartFailure] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    counted: int | None = None
    """Usage reported for each limit that gateways count."""
    drained: list[str] = field(default_factory=list)

    def fleet(self) -> ReportedFleet:
        engines = sorted(self.engines, key=lambda engine: str(engine["id"]))
        return ReportedFleet(
            engines, self.rates, self.limits_degraded, self.start_failures, self.silent
        )

    def history(self) -> Sequence[Point]:
        return self.points

    def used(self, limits: Limits) -> Mapping[str, int]:
        if self.counted is None:
            return {}
        names = [name for name in COUNTED if name in limits.values]
        return dict.fromkeys(names, self.counted)

    def drain(self, engine_id: str) -> bool:
        self.drained.append(engine_id)
        return any(engine["id"] == engine_id for engine in self.engines)
