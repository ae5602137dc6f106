"""Plans of strikes: a seed always gives the same storm, and no kind of victim is spared."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.chaos.plan import GATEWAYS_ALONE, REDIS_LEFT_ALONE_AFTER, STORMS, plan

SEEDS = st.integers(0, 10**6)


@given(SEEDS, st.sampled_from(sorted(STORMS)), st.integers(1, 600))
def test_a_seed_is_a_storm(seed: int, engine: str, seconds: int) -> None:
    storm = STORMS[engine]
    strikes = plan(seed, seconds, storm)
    assert strikes == plan(seed, seconds, storm)
    assert strikes == sorted(strikes, key=lambda strike: strike.at_s)
    known = {(victim.kind, name) for victim in storm.victims for name in victim.names}
    assert {(strike.kind, strike.name) for strike in strikes} <= known


@given(SEEDS)
def test_five_minutes_are_a_hundred_kills_of_everybody(seed: int) -> None:
    storm = STORMS["synthetic"]
    strikes = plan(seed, 300, storm)
    assert len(strikes) >= 115
    assert {strike.kind for strike in strikes} == {victim.kind for victim in storm.victims}


@pytest.mark.parametrize("engine", sorted(STORMS))
@given(seed=SEEDS, seconds=st.integers(60, 120))
def test_a_short_storm_spares_no_kind(engine: str, seed: int, seconds: int) -> None:
    strikes = plan(seed, seconds, STORMS[engine])
    assert {strike.kind for strike in strikes} == {one.kind for one in STORMS[engine].victims}


@given(SEEDS)
def test_redis_is_left_alone_at_the_end(seed: int) -> None:
    strikes = plan(seed, 300, STORMS["synthetic"])
    last = max(strike.at_s for strike in strikes if strike.kind == "redis")
    assert last < 300 * REDIS_LEFT_ALONE_AFTER


@pytest.mark.parametrize("engine", sorted(STORMS))
@given(seed=SEEDS)
def test_victims_rest(engine: str, seed: int) -> None:
    strikes = plan(seed, 300, STORMS[engine])
    for victim in STORMS[engine].victims:
        times = [one.at_s for one in strikes if one.kind == victim.kind]
        assert all(b - a >= victim.apart_s for a, b in pairwise(times))
        for name in victim.names:
            own = [one.at_s for one in strikes if (one.kind, one.name) == (victim.kind, name)]
            assert all(b - a >= victim.rest_s / 2 for a, b in pairwise(own))


def test_some_strikes_are_double() -> None:
    """So that the process that takes over dies as well."""
    times = [strike.at_s for strike in plan(1, 300, STORMS["synthetic"])]
    doubles = Counter(b - a <= 0.2 for a, b in pairwise(times))
    assert doubles[True] >= 10


@given(SEEDS)
def test_gateways_can_die_alone(seed: int) -> None:
    strikes = plan(seed, 60, GATEWAYS_ALONE)
    assert {strike.kind for strike in strikes} == {"gateway", "roll", "cut"}
    assert len(strikes) >= 12
