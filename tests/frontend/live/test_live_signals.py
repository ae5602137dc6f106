"""Which topics change, and for whom, when a gateway's engines, notices and requests change."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest

from frontend.live.feeds import Key
from frontend.live.signals import LIMITS_S, MINUTE_S, ROLLOUTS_S, Signals
from frontend.live.topics import TOPICS
from inference.gateway.measuring.history import History
from tests.frontend.operate.test_operate import ENGINE

NOON = 1_700_006_400.0
ACME, GLOBEX = 1, 2


class World:
    """A gateway's engines, its history and its signals."""

    def __init__(self) -> None:
        self.engines: list[dict[str, Any]] = [
            ENGINE | {"resident_adapters": ["acme/support@aa", "globex/secret@bb"]}
        ]
        self.history = History()
        self.signals = Signals(lambda: [dict(one) for one in self.engines], self.history)

    def values(self, now: float = NOON) -> dict[str, object]:
        """Each topic's value, for acme and globex or for the whole installation."""
        found = {}
        for topic in TOPICS.values():
            tenants = [(ACME, "acme"), (GLOBEX, "globex")] if topic.needs else [(0, "")]
            keys = [Key(topic.name, id, slug) for id, slug in tenants]
            if topic.signal is not None:
                for key, value in topic.signal(self.signals, keys, now).items():
                    found[f"{topic.name} {key.slug}".strip()] = value
        return found


def changed(before: dict[str, object], after: dict[str, object]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


@pytest.fixture
def world() -> World:
    return World()


BOTH = {f"{topic} {slug}" for topic in ("engines", "adapters", "steps", "limits")
        for slug in ("acme", "globex")}  # fmt: skip
ACMES = {name for name in BOTH if name.endswith("acme")}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda world: None, set()),
        (lambda world: world.signals.changed(ACME), ACMES),
        (lambda world: world.signals.changed(None), BOTH),
        (
            lambda world: world.signals.missed(NOON),
            BOTH | {"health acme", "health globex"},
        ),
        (lambda world: world.signals.began(ACME, NOON), {"limits acme", "health acme"}),
        (
            lambda world: world.signals.ended(ACME, NOON),
            {"limits acme", "health acme", "steps acme"},
        ),
        (lambda world: world.engines[0].update(running=9), {"fleet", "figures"}),
        (lambda world: world.engines[0].update(prompt_tokens=9), {"fleet"}),
        (
            lambda world: world.engines[0].update(draining=True),
            {"fleet", "figures", "engines acme", "engines globex"},
        ),
        (
            lambda world: world.engines[0]["resident_adapters"].remove("acme/support@aa"),
            {"fleet", "engines acme", "adapters acme"},
        ),
        (lambda world: world.engines[0]["resident_adapters"].reverse(), {"fleet"}),
        (
            lambda world: world.engines.append(world.engines[0] | {"id": "two",
                                                                   "resident_adapters": []}),
            {"fleet", "figures", "engines acme", "engines globex"},
        ),
        (lambda world: world.history.note(world.engines, NOON), {"history"}),
    ],
)  # fmt: skip
def test_a_change_is_told_to_those_whom_it_concerns(
    world: World, change: Callable[[World], None], told: set[str]
) -> None:
    world.engines[0]["resident_adapters"] = list(world.engines[0]["resident_adapters"])
    before = snapshot(world)
    change(world)
    assert changed(before, world.values()) == told


def snapshot(world: World) -> dict[str, object]:
    """A copy of the values: a hub's snapshot shares nothing with the next one."""
    return deepcopy(world.values())


def test_the_first_engine_is_a_step(world: World) -> None:
    engine = world.engines.pop()
    before = world.values()
    world.engines.append(engine)
    assert {"steps acme", "steps globex"} <= changed(before, world.values())


def test_what_is_used_of_a_minute_falls_for_so_long(world: World) -> None:
    world.signals.ended(ACME, NOON)
    seen = [world.values(NOON + second)["limits acme"] for second in range(0, 80, 2)]
    moves = sum(a != b for a, b in pairwise(seen))
    assert (MINUTE_S + LIMITS_S) / 2 <= moves <= (MINUTE_S + LIMITS_S) / 2 + 1
    assert seen[-1] == seen[-2]


BY_WORKERS = {"rollouts", "batches acme", "batches globex"}


def test_changes_by_workers_are_polled_every_few_seconds(world: World) -> None:
    before = world.values()
    assert changed(before, world.values(NOON + ROLLOUTS_S)) == BY_WORKERS
    assert changed(before, world.values(NOON + ROLLOUTS_S / 2)) == set()


def test_how_long_ago_is_told_each_minute_and_budgets_each_day(world: World) -> None:
    before = world.values()
    each_minute = {"engines acme", "engines globex", "fleet", *BY_WORKERS}
    each_minute |= {"health acme", "health globex"}
    assert changed(before, world.values(NOON + 60)) == each_minute
    assert {"limits acme", "limits globex"} <= changed(before, world.values(NOON + 86_400))
