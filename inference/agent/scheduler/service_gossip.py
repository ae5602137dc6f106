"""Service summed over several engines: what this one gave, and what others report.

Each agent tells every gateway by how much the service of each tenant grew, and one gateway tells it
what all others gave together (`inference.gateway.fleet.service`).

Gateways of protocol versions before SUMS_SINCE are told cumulative figures of the tenants that
changed. They pass them on to the other agents of the same base model, where each increase counts
once, however many gateways reported it: figures only grow within a run, so the highest one heard is
the current one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_NAMES = 65_536
"""Names remembered, for this engine and for each other one: about 10 MB."""

MAX_ENGINES = 64
"""Other engines remembered; the one heard of least recently is forgotten."""

PAST_RUNS = 8
"""Ended runs remembered of an engine, because a slow gateway may still report them."""

BATCH_SERVICE = "batch:"
"""Prefix of a tenant's name for its batch service, as engines tell each other; in no tenant's name.
Lanes have counters of their own: batch service by an idle engine delays no tenant's chat."""


def service_name(tenant: str, *, batch: bool) -> str:
    """The name under which service in a lane is reported."""
    return BATCH_SERVICE + tenant if batch else tenant


def by_lane(service: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Reported service by tenant: that of the interactive lane, and that of the batch lane."""
    lanes: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for name, amount in service.items():
        lanes[name.startswith(BATCH_SERVICE)][name.removeprefix(BATCH_SERVICE)] = amount
    return lanes


class ServiceTotals:
    """Cumulative service by name since the start, in tokens over weight.

    Each caller that wants the changes keeps its own mark, so that each gets all of them. Beyond
    `max_names` the name that changed least recently is forgotten, and starts again from 0 if it
    returns; engines that remember its old figure count only what exceeds that.
    """

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._version = 0
        self._figures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Figure and version of its last change, the last changed last."""
        self._gained: dict[str, float] = {}

    def add(self, name: str, service: float) -> None:
        """The name was given `service` more."""
        self._version += 1
        figure, _ = self._figures.get(name, (0.0, 0))
        self._figures[name] = figure + service, self._version
        self._figures.move_to_end(name)
        self._gained[name] = self._gained.get(name, 0.0) + service
        if len(self._figures) > self._max_names:
            self._figures.popitem(last=False)

    def gained(self) -> dict[str, float]:
        """By how much each figure grew since the last call."""
        gained, self._gained = self._gained, {}
        return gained

    def since(self, mark: int) -> tuple[int, dict[str, float]]:
        """The current mark, and the figures that changed after `mark`; 0 is the start.

        O(number of changed names).
        """
        changed: dict[str, float] = {}
        for name in reversed(self._figures):
            figure, version = self._figures[name]
            if version <= mark:
                break
            changed[name] = figure
        return self._version, changed


@dataclass(slots=True)
class Other:
    """What was heard of another engine."""

    run: str
    whole: bool
    """Whether its run was heard of from its beginning: a name that is new then began at 0."""
    ended: deque[str] = field(default_factory=lambda: deque(maxlen=PAST_RUNS))
    figures: OrderedDict[str, float] = field(default_factory=OrderedDict)


class RemoteService:
    """What other engines report.

    What an engine served before it was first heard of does not count: the first figure of each name
    is where counting begins. When a known engine restarts (another `run`), its figures begin at 0
    and count in full.
    """

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._others: OrderedDict[str, Other] = OrderedDict()

    def heard(self, engine_id: str, run: str, served: Mapping[str, float]) -> dict[str, float]:
        """By how much the figures grew, for those that did; none for a repetition."""
        other = self._other(engine_id, run)
        if other is None:
            return {}
        grown: dict[str, float] = {}
        for name, figure in served.items():
            known = other.figures.pop(name, 0.0 if other.whole else figure)
            other.figures[name] = max(known, figure)
            if figure > known:
                grown[name] = figure - known
        self._forget(other)
        return grown

    def _other(self, engine_id: str, run: str) -> Other | None:
        """The engine in this run; None if that run has ended."""
        other = self._others.pop(engine_id, None)
        if other is None:
            other = Other(run, whole=False)
        elif run != other.run and run not in other.ended:
            other.ended.append(other.run)
            other = Other(run, whole=True, ended=other.ended)
        self._others[engine_id] = other
        if len(self._others) > MAX_ENGINES:
            self._others.popitem(last=False)
        return other if run == other.run else None

    def _forget(self, other: Other) -> None:
        """Enforce `max_names`; from then on an unknown name may be one that was forgotten."""
        while len(other.figures) > self._max_names:
            other.figures.popitem(last=False)
            other.whole = False
