"""The demand on each pool, which must be the same whichever gateway is asked for it."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import Unavailable
from inference.gateway.fleet.demand import (
    FIGURES,
    MAX_REFUSALS,
    RATE_S,
    SETTLED_S,
    STALE_S,
    CompletionRate,
    Demand,
    FleetDemand,
    Refusals,
    demand_of,
    together,
)
from inference.gateway.routing.engine_state import EngineState
from inference.gateway.routing.engines import RETRY_AFTER_S
from inference.link.accounts import Totals
from inference.link.engine_info import EngineStats, ModelInfo
from tests.inference.samples import MODEL


def engine(
    id: str, model: ModelInfo = MODEL, *, ended: int = 0, draining: bool = False, **stats: int
) -> EngineState:
    told = EngineStats(journaled=Totals(ended), **stats)  # type: ignore[arg-type]
    return EngineState(id, model, told, draining=draining)


pytestmark = pytest.mark.pure


def test_a_gateway_sees_what_engines_and_clients_tell_it() -> None:
    other = msgspec.structs.replace(MODEL, name="other")
    engines = [
        engine("a", running=3, waiting=1, queued=2),
        engine("b", running=1),
        engine("c", other, running=5),
    ]
    assert demand_of(engines, {"base": 4}, Counter({"new": 7})) == {
        "base": Demand(2, 5, 2, 4, 0),
        "other": Demand(1, 5, 0, 0, 0),
        "new": Demand(0, 0, 0, 0, 7),
    }


def test_dispatched_requests_count_before_the_engine_reports_them() -> None:
    busy = engine("a", running=1, queued=2)
    busy.dispatched = 9
    assert demand_of([busy], {}, {})["base"] == Demand(1, 7, 2)


def test_requests_of_a_draining_engine_are_no_demand() -> None:
    assert demand_of([engine("a", running=3, draining=True)], {}, {}) == {}


figures = st.builds(Demand, *[st.integers(0, 9)] * 5)
views = st.lists(st.dictionaries(st.sampled_from(["a", "b"]), figures), max_size=4)


@given(views)
def test_engines_count_once_and_held_requests_per_gateway(
    found: list[dict[str, Demand]],
) -> None:
    for pool, demand in together(found).items():
        of_pool = [view[pool] for view in found if pool in view]
        assert demand.running == max(one.running for one in of_pool)
        assert demand.engines == max(one.engines for one in of_pool)
        assert demand.held == sum(one.held for one in of_pool)
        assert demand.unmet == sum(one.unmet for one in of_pool)
    assert together(found) == together(reversed(found))


def test_a_client_that_retries_when_told_counts_once() -> None:
    refusals = Refusals()
    refusals.note("base", 0.0)
    refusals.note("base", RETRY_AFTER_S)
    refusals.note("other", 1.0)
    assert refusals.counts(RETRY_AFTER_S) == {"base": 2, "other": 1}
    assert refusals.counts(RETRY_AFTER_S + 0.1) == {"base": 1, "other": 1}
    assert refusals.counts(3 * RETRY_AFTER_S) == {}
    for _ in range(MAX_REFUSALS + 1):
        refusals.note("base", 100.0)
    assert refusals.counts(100.0) == {"base": MAX_REFUSALS}


def test_the_expected_wait_follows_from_the_completion_rate() -> None:
    rate = CompletionRate()
    waiting = Demand(queued=6, held=3, unmet=1)
    assert rate.wait_s("base", waiting) is None
    rate.note([engine("a", ended=10)], 0.0)
    assert rate.wait_s("base", waiting) is None, "nothing ended yet"
    rate.note([engine("a", ended=12), engine("b", ended=500)], 5.0)
    rate.note([engine("a", ended=14), engine("b", ended=501)], 10.0)
    assert rate.wait_s("base", waiting) == pytest.approx(10 / (5 / 10.0))
    assert rate.wait_s("base", Demand(running=3)) == 0.0
    rate.note([engine("a", ended=1)], 10.0 + RATE_S)  # the engine was restarted
    assert rate.wait_s("base", waiting) is None


class Fleet:
    """A FleetDemand whose local view the test sets."""

    def __init__(self) -> None:
        self.view: dict[str, Demand] = {}
        self.demand = FleetDemand(lambda: self.view, now=0.0)


def test_no_demand_is_reported_before_engines_could_connect() -> None:
    fleet = Fleet()
    with pytest.raises(Unavailable):
        fleet.demand.pools(0.0)  # no other gateway has been heard yet
    fleet.demand.set_others([], 1.0)
    with pytest.raises(Unavailable):
        fleet.demand.pools(1.0)
    fleet.demand.set_others([], SETTLED_S)
    assert fleet.demand.pools(SETTLED_S) == {}


def test_another_gateway_knows_the_engines_of_one_that_has_just_started() -> None:
    fleet = Fleet()
    fleet.demand.set_others([{"base": Demand(2, 5, 1, 3)}], 1.0)
    assert fleet.demand.pools(1.0) == {"base": Demand(2, 5, 1, 3)}
    fleet.view = {"base": Demand(1, 2, 0, 4, 1)}
    assert fleet.demand.pools(1.0) == {"base": Demand(2, 5, 1, 7, 1)}


def test_no_demand_is_reported_while_other_gateways_are_unknown() -> None:
    fleet = Fleet()
    fleet.view = {"base": Demand(1, 2)}
    fleet.demand.set_others([{"base": Demand(1, 2, held=9)}], 100.0)
    assert fleet.demand.pools(100.0 + STALE_S)["base"].held == 9
    with pytest.raises(Unavailable):
        fleet.demand.pools(100.1 + STALE_S)
    fleet.demand.set_others([], 120.0)
    assert fleet.demand.pools(120.0)["base"].held == 0, "the other one died"


def test_figures_have_the_names_that_are_declared() -> None:
    fleet = Fleet()
    fleet.view = {"base": Demand(2, 5, 0, 0)}
    fleet.demand.set_others([], 20.0)
    assert fleet.demand.figures(20.0) == {
        "base": {
            "demand": 5,
            "engines": 2,
            "running": 5,
            "queued": 0,
            "held": 0,
            "unmet": 0,
            "expected_wait_seconds": 0.0,
        }
    }
    assert list(FIGURES) == list(fleet.demand.figures(20.0)["base"])
    waiting = fleet.demand.figures_of("base", Demand(held=1))
    assert "expected_wait_seconds" not in waiting and waiting["demand"] == 1
