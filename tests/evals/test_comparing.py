"""The interval of the difference of two runs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.evals.comparing import (
    MANY_SCORES,
    PairedDifference,
    PairedOutcomes,
    difference,
    mean_difference,
)

pytestmark = pytest.mark.pure

KINDS = ((True, True), (True, False), (False, True), (False, False))
SHARES = (0.5, 0.1, 0.2, 0.2)
"""Of rows that pass in both, only in the first, only in the second, in neither."""
CASES = 400


def found(*counts: int) -> PairedDifference:
    told = difference(PairedOutcomes(*counts))
    assert told is not None
    return told


def test_without_rows_there_is_no_difference() -> None:
    assert difference(PairedOutcomes.of([])) is None


def test_pairs_are_counted() -> None:
    pairs = PairedOutcomes.of([KINDS[0], KINDS[1], KINDS[1], KINDS[2], KINDS[3]])
    assert (pairs, pairs.rows) == (PairedOutcomes(1, 2, 1, 1), 5)
    told = found(1, 2, 1, 1)
    assert (told.a, told.b) == (0.6, 0.4)
    assert told.value == pytest.approx(-0.2)


def test_the_interval_contains_the_truth_in_95_percent_of_cases() -> None:
    random, truth, hits = Random(7), SHARES[2] - SHARES[1], 0
    for _ in range(CASES):
        pairs = PairedOutcomes.of(random.choices(KINDS, SHARES, k=200))
        told = difference(pairs)
        assert told is not None
        hits += told.low <= truth <= told.high
    assert 0.92 <= hits / CASES <= 0.98


@given(*[st.integers(0, 300)] * 4)
def test_exchanged_runs_have_the_opposite_difference(a: int, b: int, c: int, d: int) -> None:
    if not a + b + c + d:
        return
    told, turned = found(a, b, c, d), found(a, c, b, d)
    assert (told.low, told.high) == (-turned.high, -turned.low)
    assert told.low - 1e-9 <= told.value <= told.high + 1e-9
    assert told.excludes_zero == turned.excludes_zero


def test_many_rows_give_a_narrow_interval_and_equal_runs_none() -> None:
    assert found(5000, 1500, 1900, 1600).excludes_zero
    assert not found(5, 15, 19, 16).excludes_zero
    assert not found(5000, 1500, 1500, 2000).excludes_zero
    assert (found(9, 0, 0, 3).low, found(9, 0, 0, 3).high) == (0.0, 0.0)
    assert (found(0, 0, 3, 0).low, found(0, 0, 3, 0).high) == (1.0, 1.0)


def test_the_interval_is_that_of_the_normal_distribution_where_there_are_many_rows() -> None:
    told = found(4000, 2500, 3000, 500)
    half = 1.96 * ((0.55 - 0.05**2) / 10_000) ** 0.5
    assert told.low == pytest.approx(0.05 - half, abs=half / 10)
    assert told.high == pytest.approx(0.05 + half, abs=half / 10)


def test_without_rows_there_is_no_difference_of_scores() -> None:
    assert mean_difference([]) is None


@pytest.mark.parametrize("rows", [40, MANY_SCORES + 1])
def test_the_interval_of_mean_scores_contains_the_truth_in_95_percent_of_cases(rows: int) -> None:
    random, truth, hits = Random(11), 0.05, 0
    for _ in range(CASES // 2):
        first = [random.gauss(0.5, 0.2) for _ in range(rows)]
        told = mean_difference([(one, one + random.gauss(truth, 0.1)) for one in first])
        assert told is not None
        hits += told.low <= truth <= told.high
    assert 0.9 <= hits / (CASES // 2) <= 0.99


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
@settings(max_examples=20)
def test_exchanged_scores_have_the_opposite_difference(pairs: list[tuple[float, float]]) -> None:
    told, turned = mean_difference(pairs), mean_difference([(b, a) for a, b in pairs])
    assert told is not None and turned is not None
    assert (told.low, told.high) == pytest.approx((-turned.high, -turned.low))
    assert told.low - 1e-9 <= told.value <= told.high + 1e-9
    assert (told.a, told.b) == (turned.b, turned.a)


def test_both_intervals_of_mean_scores_are_alike() -> None:
    random = Random(3)
    pairs = [(random.random(), random.random()) for _ in range(MANY_SCORES)]
    drawn, normal = mean_difference(pairs), mean_difference(pairs + pairs[:1])
    assert drawn is not None and normal is not None
    assert (drawn.low, drawn.high) == pytest.approx((normal.low, normal.high), abs=0.01)
