"""When what is killed: a pure function of a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

GATEWAYS = ("gateway-0", "gateway-1")
AGENTS = ("agent-0", "agent-1")

REDIS_LEFT_ALONE_AFTER = 0.55
"""In the last part of a run Redis is not killed, so that what it counts can be held against the
limits of minutes, and against the ledger, while everything else dies."""
REST_SHARE = 0.5
"""Each victim's rest is at least this share of its `rest_s`: some die while they start."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Kill this at so many seconds from the beginning."""

    at_s: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Victim:
    """A kind of process, how often it is hit in relation to the others, how long each of it then
    rests in general, and what lies at least between two hits of the kind."""

    kind: str
    names: tuple[str, ...]
    weight: float
    rest_s: float
    apart_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Storm:
    """What happens in a run of an engine."""

    interval_s: float
    """Between two kills, on average."""
    victims: tuple[Victim, ...]


STORMS = {
    "synthetic": Storm(
        interval_s=2.2,
        victims=(
            Victim("agent", AGENTS, 3.0, 6.0),
            Victim("gateway", GATEWAYS, 2.0, 15.0),
            Victim("postgres", ("postgres",), 1.5, 8.0),
            Victim("backend", ("postgres",), 1.5, 4.0),
            Victim("redis", ("redis",), 2.0, 5.0),
        ),
    ),
    "vllm": Storm(
        interval_s=5.0,
        victims=(
            Victim("agent", AGENTS, 2.0, 60.0, apart_s=30.0),
            Victim("gateway", GATEWAYS, 2.0, 20.0),
            Victim("postgres", ("postgres",), 1.5, 15.0),
            Victim("backend", ("postgres",), 1.5, 8.0),
            Victim("redis", ("redis",), 2.0, 10.0),
        ),
    ),
}


@dataclass(slots=True)
class _Rests:
    """Until when each victim is left alone."""

    until: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, kind: str, name: str, until_s: float) -> None:
        self.until[kind, name] = max(until_s, self.until.get((kind, name), 0.0))

    def over(self, kind: str, name: str, at_s: float) -> bool:
        return at_s >= self.until.get((kind, name), 0.0)


def plan(seed: int, seconds: float, storm: Storm) -> list[Strike]:
    """The kills of a run, in order: one at a random moment of each interval."""
    luck, rests = random.Random(seed), _Rests()
    strikes = []
    for number in range(max(1, int(seconds / storm.interval_s))):
        at_s = (number + luck.random()) * storm.interval_s
        choices = [
            (victim, name)
            for victim in storm.victims
            for name in victim.names
            if rests.over(victim.kind, name, at_s) and _may_die(victim.kind, at_s / seconds)
        ]
        if not choices:
            continue
        weights = [victim.weight / len(victim.names) for victim, _ in choices]
        ((victim, name),) = luck.choices(choices, weights)
        for other in victim.names:
            rests.add(victim.kind, other, at_s + victim.apart_s)
        rests.add(victim.kind, name, at_s + victim.rest_s * luck.uniform(REST_SHARE, 1.5))
        strikes.append(Strike(at_s, victim.kind, name))
    return strikes


def _may_die(kind: str, part: float) -> bool:
    return kind != "redis" or part < REDIS_LEFT_ALONE_AFTER
