"""The decision about a rollout's next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.measuring.measures import DURATION_S
from inference.gateway.measuring.sums import BUCKETS
from tenants.rollouts.driver import (
    ENGINE_GONE_S,
    MIN_ERRORS,
    MIN_TIMES,
    CheckIsolation,
    Finish,
    Observed,
    Raise,
    RollBack,
    RolloutPlan,
    RolloutSide,
    RolloutWait,
    decide,
)

pytestmark = pytest.mark.pure

PLAN = RolloutPlan(
    weight=25,
    next_weight=50,
    step_s=600.0,
    min_requests=20,
    max_error_percent=2.0,
    max_ttft_ratio=1.5,
    needs_isolation=True,
)


def times(seconds: float, count: int = MIN_TIMES) -> tuple[int, ...]:
    """The histogram of `count` first tokens that took this long."""
    bounds = (*DURATION_S, float("inf"))
    at = next(i for i, bound in enumerate(bounds) if seconds <= bound)
    return tuple(count if i == at else 0 for i in range(BUCKETS))


GOOD = Observed(
    step_age_s=601.0,
    old=RolloutSide(1000, 10, times(0.3)),
    new=RolloutSide(100, 1, times(0.3)),
    answered=100,
    gone_s=None,
    moved=3,
    untried=0,
    behind=0,
    isolation=True,
)


def test_a_weight_that_was_watched_is_raised_to_the_next() -> None:
    assert decide(PLAN, GOOD) == Raise(50)


def test_the_first_weight_takes_trials_and_isolation_but_no_time() -> None:
    first = replace(PLAN, weight=0, next_weight=5)
    seen = replace(GOOD, step_age_s=0.0, new=RolloutSide(), answered=0, moved=0)
    assert decide(first, seen) == Raise(5)
    assert decide(first, replace(seen, untried=2)) == RolloutWait(
        "the test of 2 adapters on the new revision"
    )
    assert isinstance(decide(first, replace(seen, isolation=None)), CheckIsolation)
    assert decide(replace(first, needs_isolation=False), replace(seen, isolation=None)) == Raise(5)


@pytest.mark.parametrize(
    ("lacking", "waits_for"),
    [
        ({"step_age_s": 590.0}, "10 s more at 25%"),
        ({"answered": 19}, "1 more request on"),
        ({"untried": 1}, "the test of 1 adapter on"),
        ({"isolation": None}, "isolation check"),
        ({"gone_s": 1.0}, "an engine of the new revision"),
    ],
)
def test_conditions_that_the_next_step_waits_for(
    lacking: dict[str, object], waits_for: str
) -> None:
    decision = decide(PLAN, replace(GOOD, **lacking))  # type: ignore[arg-type]
    assert isinstance(decision, RolloutWait) and waits_for in decision.for_


def test_requests_are_not_awaited_if_no_tenant_has_moved() -> None:
    assert decide(PLAN, replace(GOOD, answered=0, moved=0)) == Raise(50)


def test_tenants_that_stay_behind_only_hold_up_the_end_of_the_rollout() -> None:
    assert decide(PLAN, replace(GOOD, behind=2)) == Raise(50)
    last = replace(PLAN, weight=100, next_weight=None)
    assert decide(last, GOOD) == Finish()
    waits = decide(last, replace(GOOD, behind=2))
    assert isinstance(waits, RolloutWait) and "2 tenants cannot move" in waits.for_


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"isolation": False}, "isolation"),
        (
            {"new": RolloutSide(100, 4)},
            "4.0% of 100 requests failed on the new revision. The limit is 3.0%",
        ),
        (
            {"new": RolloutSide(100, 0, times(0.6))},
            "The TTFT p95 on the new revision is 0.64 s. The limit",
        ),
        ({"new": RolloutSide(100, 0, times(1e9))}, "The TTFT p95"),
        ({"gone_s": ENGINE_GONE_S}, "The new revision has had no engine for"),
    ],
)
def test_a_guard_that_fails_rolls_back(bad: dict[str, object], reason: str, paused: bool) -> None:
    decision = decide(replace(PLAN, paused=paused), replace(GOOD, **bad))  # type: ignore[arg-type]
    assert isinstance(decision, RollBack) and reason in decision.reason


@pytest.mark.parametrize(
    "bearable",
    [
        {"new": RolloutSide(MIN_ERRORS - 1, MIN_ERRORS - 1)},  # too few to tell
        {"new": RolloutSide(100, 3)},  # 1 % fail on the old revision, and 2 % more are allowed
        {"new": RolloutSide(100, 0, times(1e9, MIN_TIMES - 1))},
        {
            "new": RolloutSide(100, 0, times(0.6)),
            "old": RolloutSide(1000, 10, times(0.3, MIN_TIMES - 1)),
        },
        {
            "new": RolloutSide(100, 0, times(0.08)),
            "old": RolloutSide(1000, 10, times(0.005)),
        },  # fast enough
    ],
)
def test_tolerable_figures_do_not_roll_back(bearable: dict[str, object]) -> None:
    assert decide(PLAN, replace(GOOD, **bearable)) == Raise(50)  # type: ignore[arg-type]


def test_any_time_is_allowed_where_the_plan_says_so() -> None:
    slow = replace(GOOD, new=RolloutSide(100, 0, times(1e9)))
    assert decide(replace(PLAN, max_ttft_ratio=None), slow) == Raise(50)


def test_a_missing_engine_rolls_nothing_back_at_weight_0() -> None:
    first = replace(PLAN, weight=0, next_weight=5)
    decision = decide(first, replace(GOOD, gone_s=1e6))
    assert decision == RolloutWait("an engine of the new revision")


def test_a_paused_rollout_stays_where_it_is() -> None:
    decision = decide(replace(PLAN, paused=True), GOOD)
    assert isinstance(decision, RolloutWait) and "operator" in decision.for_


@given(st.lists(st.integers(0, 1000), min_size=BUCKETS, max_size=BUCKETS))
def test_the_95th_percentile_has_as_many_below_it(counts: list[int]) -> None:
    p95_s, total = RolloutSide(first_tokens=counts).ttft_p95_s, sum(counts)
    if total < MIN_TIMES:
        assert p95_s is None
        return
    assert p95_s is not None
    bounds = (*DURATION_S, 2 * DURATION_S[-1])
    within = sum(count for bound, count in zip(bounds, counts, strict=True) if bound <= p95_s)
    below = sum(count for bound, count in zip(bounds, counts, strict=True) if bound < p95_s)
    assert within >= 0.95 * total > below


def test_of_nothing_no_share_fails() -> None:
    assert RolloutSide().error_percent == 0.0
