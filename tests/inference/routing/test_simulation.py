"""The real routing in small simulated fleets; `make bench ARGS=routing` measures large ones.

Not among the pure tests: coverage would make them several times as slow, and covers every branch
without them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from inference.gateway.routing.choice import choose
from tests.labs.bench.simulation.fleet import Figures, Fleet, by_chance, endless, least_loaded
from tests.labs.bench.simulation.gateway import Router
from tests.labs.bench.simulation.traces import Workload, recorded

ENGINES, SESSIONS = 4, 96


def simulated(
    gateways: int = 1, *, router: Router = choose, tells: bool = True, dies: bool = False
) -> Figures:
    """Figures of the second minute; the first one fills the caches."""
    work = Workload(tenants=20, adapters=160)
    fleet = Fleet(ENGINES, gateways, router=router, tells=tells)
    fleet.keep([endless(work.session) for _ in range(SESSIONS)], spread_s=20)
    fleet.run(60)
    if dies:
        fleet.kill(["e0"])
    fleet.count_from_now()
    fleet.run(120)
    return fleet.counted()


usual = cache(simulated)
"""The same figures, computed once for several tests."""


@pytest.mark.parametrize("gateways", [1, 3, 16])
def test_a_fleet_finds_what_one_engine_would_have_in_its_cache(gateways: int) -> None:
    found = usual(gateways)
    assert found.requests > 600
    assert found.hit_ratio > 0.93
    assert found.held_skew < 1.5
    assert found.load_ratio < 2


def test_random_and_load_routing_alone_do_worse() -> None:
    ours = usual(1)
    for router in (by_chance, least_loaded):
        found = simulated(router=router)
        assert found.hit_ratio < 0.8 < ours.hit_ratio
        assert found.loads > 2 * ours.loads
        assert found.ttft_ms(0.5) > 2 * ours.ttft_ms(0.5)


def test_engines_that_tell_nothing_are_followed_by_guesses() -> None:
    assert simulated(3, tells=False).hit_ratio > 0.85


def test_requests_of_a_dead_engine_continue_elsewhere() -> None:
    found = simulated(3, dies=True)
    assert found.moves > 0
    assert len(found.worked) == ENGINES - 1
    assert found.hit_ratio > 0.9


def test_a_simulation_is_the_same_each_time() -> None:
    assert simulated(3).hit_ratio == usual(3).hit_ratio


def test_a_limit_holds_whatever_a_tenant_sends() -> None:
    work = Workload(tenants=1, adapters=1)
    fleet = Fleet(1, 2)
    fleet.limit({"t0": 60_000})
    fleet.count_from_now()
    fleet.keep([endless(work.session) for _ in range(20)], spread_s=1)
    fleet.run(30)
    found = fleet.counted()
    assert found.refused > 0
    assert 0 < found.let_through["t0"] <= 60_000


def test_a_recorded_trace_is_replayed(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1000 * at, "input_length": 1500, "output_length": 20, "hash_ids": [0, 1, at]}
        for at in range(2, 12)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    fleet = Fleet(2, 1)
    fleet.count_from_now()
    fleet.replay(recorded(path, limit=9))
    fleet.run(60)
    found = fleet.counted()
    assert found.requests == 9
    assert found.could_be_cached == 8 * 1024
    assert found.hit_ratio == 1
