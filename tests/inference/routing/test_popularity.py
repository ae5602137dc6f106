"""Each adapter's share of the traffic, and how many home engines it has accordingly."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from inference.gateway.routing.choice import ROOMY
from inference.gateway.routing.engine_state import EngineState
from inference.gateway.routing.popularity import LEAST_TOKENS, WINDOW_TOKENS, Popularity
from tests.inference.routing.chosen import choose
from tests.inference.routing.test_prediction import engine, fleet, names, needs

pytestmark = pytest.mark.pure

HOT, RARE, *_ = names(8)
ENGINES = 40


def shares(popularity: Popularity) -> list[float]:
    return [popularity.weighed(needs(adapter)).share for adapter in (HOT, RARE)]


def test_shares_are_those_of_the_tokens() -> None:
    popularity = Popularity()
    for at in range(400):
        popularity.note(needs(RARE if at % 4 == 0 else HOT, tokens=4000))
    hot, rare = shares(popularity)
    assert 0.7 < hot < 0.75 and 0.22 < rare < 0.25


def test_a_share_within_random_variation_does_not_count() -> None:
    """Each of many gateways sees few requests at first, and some adapter has to be the first."""
    popularity = Popularity()
    popularity.note(needs(HOT, tokens=5000))
    assert shares(popularity) == [0, 0]
    popularity.note(needs(HOT, tokens=5000))
    popularity.note(needs(RARE, tokens=5000))
    hot, rare = shares(popularity)
    assert 0 < hot < 0.25 and rare == 0


def test_a_share_is_one_of_a_base_model() -> None:
    popularity = Popularity()
    for _ in range(10_000):
        popularity.note(needs(HOT, tokens=500))
        popularity.note(replace(needs(RARE, tokens=500), base_model="another"))
    assert shares(popularity) == [pytest.approx(1, rel=0.02), 0]


def test_old_requests_count_little() -> None:
    popularity = Popularity()
    for _ in range(WINDOW_TOKENS // 4096):
        popularity.note(needs(HOT, tokens=4096))
    for _ in range(4 * WINDOW_TOKENS // 4096):
        popularity.note(needs(RARE, tokens=4096))
    hot, rare = shares(popularity)
    assert 0 < hot < 0.15
    assert hot + rare == pytest.approx(1, rel=0.1)


def test_short_requests_fill_the_window_as_well() -> None:
    popularity = Popularity()
    for number in range(3 * WINDOW_TOKENS // LEAST_TOKENS):
        popularity.note(needs(tenant=f"t{number}", tokens=1))
    assert len(popularity._windows["base"]._counts) <= WINDOW_TOKENS // LEAST_TOKENS


def test_requests_without_a_home_have_no_share() -> None:
    popularity = Popularity()
    for _ in range(100):
        popularity.note(needs(tenant="", tokens=4000))
    assert popularity.weighed(needs(tenant="")).share == 0


def chosen(share: float, engines: list[EngineState], seeds: int = 200) -> set[str]:
    wanted = replace(needs(HOT), share=share)
    return {choose(engines, wanted, random.Random(seed)) for seed in range(seeds)}


def test_a_popular_adapter_has_several_homes() -> None:
    """Although it is loaded on one engine where nothing waits."""
    loaded = engine("loaded", resident=[HOT.name], kv_usage=0.1)
    engines = [loaded, *fleet(ENGINES - 1, kv_usage=0.1)]
    assert chosen(1 / (ROOMY * ENGINES), engines) == {"loaded"}
    homes = chosen(8 / (ROOMY * ENGINES), engines)
    assert len(homes | {"loaded"}) in (8, 9)
    assert homes <= chosen(12 / (ROOMY * ENGINES), engines)


def test_all_engines_are_home_to_what_fills_them() -> None:
    engines = fleet(ENGINES, kv_usage=0.1)
    assert len(chosen(0.9, engines, seeds=1000)) == ENGINES


def test_of_its_homes_the_cheaper_one_gets_it() -> None:
    engines = [*fleet(2, queued_tokens=50_000), engine("free")]
    assert chosen(0.9, engines) == {"free"}
