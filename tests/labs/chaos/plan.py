"""When which process is killed, stopped, drained or cut off: a pure function of a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

GATEWAYS = ("gateway-0", "gateway-1")
AGENTS = ("agent-0", "agent-1")
POOLERS = ("pooler-0", "pooler-1")
"""Agents of a second base model, which embeds; the model of the other agents generates."""
ENGINES = (*AGENTS, *POOLERS)
WORKERS = ("worker-0", "worker-1")
CONSOLE = "console"
TRAINER = "trainer"

REDIS_LEFT_ALONE_AFTER = 0.55
"""Share of a run after which Redis is not killed, so that its counts can be compared with the
limits per minute, and with the ledger, while everything else dies."""
REST_SHARE = 0.5
"""A victim's rest is at least this share of its `rest_s`, so that some die while they start."""


DOUBLE_SHARE, APART_S = 0.25, (0.0, 0.2)
"""Share of the strikes that are followed by another one, and the seconds between them."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Strike this process `at_s` seconds after the beginning.

    An `agent`, a `gateway`, `postgres`, one `backend` of it, `redis`, a `worker`, the `console` and
    the `trainer` are killed; `training` kills the trainer only while it trains and has saved a
    state. An agent is made to `hang` (SIGSTOP) or to `drain` (SIGTERM), a worker to `stall`
    (SIGSTOP, until others have its batches), and a gateway to `roll` (SIGTERM). A `cut` breaks all
    links of engines to a gateway.
    """

    at_s: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Victim:
    """A kind of victim: its weight among the kinds, the typical rest of each process after a hit,
    and the least time between two hits of the kind."""

    kind: str
    names: tuple[str, ...]
    weight: float
    rest_s: float
    apart_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Storm:
    """What happens in a run with a kind of engine."""

    interval_s: float
    """Between two kills, on average."""
    victims: tuple[Victim, ...]


BATCHES = (
    Victim("worker", WORKERS, 1.5, 20.0),
    Victim("stall", WORKERS, 0.7, 40.0),
    Victim("console", (CONSOLE,), 1.0, 15.0),
)

TRAINING = (
    Victim("trainer", (TRAINER,), 0.5, 30.0),
    Victim("training", (TRAINER,), 0.5, 40.0),
)

STORMS = {
    "synthetic": Storm(
        interval_s=2.6,
        victims=(
            Victim("agent", ENGINES, 2.0, 8.0),
            Victim("hang", ENGINES, 1.0, 25.0),
            Victim("drain", ENGINES, 1.5, 10.0),
            Victim("cut", GATEWAYS, 1.5, 6.0),
            Victim("gateway", GATEWAYS, 2.0, 15.0),
            Victim("roll", GATEWAYS, 1.0, 25.0),
            Victim("postgres", ("postgres",), 1.5, 8.0),
            Victim("backend", ("postgres",), 1.5, 4.0),
            Victim("redis", ("redis",), 2.0, 5.0),
            *BATCHES,
            *TRAINING,
        ),
    ),
    "vllm": Storm(
        interval_s=4.0,
        victims=(
            Victim("agent", ENGINES, 2.0, 60.0, apart_s=30.0),
            Victim("hang", ENGINES, 1.0, 60.0, apart_s=30.0),
            Victim("drain", ENGINES, 1.0, 90.0, apart_s=45.0),
            Victim("cut", GATEWAYS, 1.5, 15.0),
            Victim("gateway", GATEWAYS, 2.0, 20.0),
            Victim("roll", GATEWAYS, 1.0, 30.0),
            Victim("postgres", ("postgres",), 1.5, 15.0),
            Victim("backend", ("postgres",), 1.5, 8.0),
            Victim("redis", ("redis",), 2.0, 10.0),
            *BATCHES,
            *TRAINING,
        ),
    ),
}


GATEWAYS_ALONE = Storm(
    interval_s=3.0,
    victims=(
        Victim("gateway", GATEWAYS, 2.0, 12.0),
        Victim("roll", GATEWAYS, 1.0, 15.0, apart_s=8.0),
        Victim("cut", GATEWAYS, 1.0, 8.0),
    ),
)
"""Nothing else dies, so each request that is repeated with its idempotency key has one bill."""


def without_trainer(storm: Storm) -> Storm:
    """The storm for an installation that has no trainer."""
    return replace(storm, victims=tuple(one for one in storm.victims if one not in TRAINING))


def plan(seed: int, seconds: float, storm: Storm) -> list[Strike]:
    """The strikes of a run, in order: one at a random moment of each interval, some of them double.

    A double strike may hit the process that takes over for the first victim before it has done so.
    The first strikes hit each kind once, in random order, so that a short run spares none.
    """
    luck = random.Random(seed)
    fates = _Fates(storm, seconds, luck)
    strikes = []
    for number in range(max(1, int(seconds / storm.interval_s))):
        at_s = (number + luck.random()) * storm.interval_s
        strikes += fates.strike(at_s)
        if luck.random() < DOUBLE_SHARE:
            strikes += fates.strike(at_s + luck.uniform(*APART_S))
    return sorted(strikes, key=lambda strike: strike.at_s)


@dataclass(slots=True)
class _Fates:
    """Which victims may be struck: each is left alone until its time."""

    storm: Storm
    seconds: float
    luck: random.Random
    until: dict[tuple[str, str], float] = field(default_factory=dict)
    struck: set[str] = field(default_factory=set)

    def strike(self, at_s: float) -> list[Strike]:
        """One strike, or none if all victims rest."""
        choices = [
            (victim, name)
            for victim in self.storm.victims
            for name in victim.names
            if self._may_die(victim.kind, name, at_s)
        ]
        fresh = [one for one in choices if one[0].kind not in self.struck]
        late = at_s >= REDIS_LEFT_ALONE_AFTER / 2 * self.seconds
        redis = [one for one in fresh if one[0].kind == "redis" and late]  # its time ends soon
        choices = redis or fresh or choices
        if not choices:
            return []
        weights = [victim.weight / len(victim.names) for victim, _ in choices]
        ((victim, name),) = self.luck.choices(choices, weights)
        self.struck.add(victim.kind)
        for other in victim.names:
            self._rest(victim.kind, other, at_s + victim.apart_s)
        self._rest(victim.kind, name, at_s + victim.rest_s * self.luck.uniform(REST_SHARE, 1.5))
        return [Strike(at_s, victim.kind, name)]

    def _may_die(self, kind: str, name: str, at_s: float) -> bool:
        if kind == "redis" and at_s >= REDIS_LEFT_ALONE_AFTER * self.seconds:
            return False
        return at_s >= self.until.get((kind, name), 0.0)

    def _rest(self, kind: str, name: str, until_s: float) -> None:
        self.until[kind, name] = max(until_s, self.until.get((kind, name), 0.0))
