"""The sequential tests of a split's guards."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.splits.sequential import MAX_KEYS, ArmSums, MeanTest, SequentialTest, ShareTest
from tests.labs.splits.simulation import ALPHA, Scenario, run

pytestmark = pytest.mark.pure

RUNS = 60
MOST_FALSE = 8
"""With a chance of 5 % more than 8 of 60 come once in 250 times; these runs are always the same."""


@pytest.mark.parametrize(
    "same",
    [
        Scenario("same", requests=800, usual=0.05),
        Scenario("incidents", requests=800, usual=0.05, incidents=True),
        Scenario("sticky", requests=800, usual=0.05, sticky=True),
    ],
    ids=lambda one: one.name,
)
def test_equal_versions_are_rarely_rolled_back(same: Scenario) -> None:
    assert sum(run(same, seed).requests is not None for seed in range(RUNS)) <= MOST_FALSE


@pytest.mark.parametrize(
    "worse",
    [
        Scenario("errors", bad=0.2, requests=2000),
        Scenario("sticky errors", bad=0.2, sticky=True, requests=3000),
        Scenario("score", score=0.3, requests=6000),
    ],
    ids=lambda one: one.name,
)
def test_a_worse_version_is_found(worse: Scenario) -> None:
    assert all(run(worse, seed).requests is not None for seed in range(10))


def test_a_better_version_is_never_rolled_back() -> None:
    random, test = Random(1), ShareTest()
    for _ in range(2000):
        candidate = random.random() < 0.25
        bad = random.random() < (0.01 if candidate else 0.2)
        test.add(float(bad), None, 0.25, candidate=candidate)
        assert not test.is_worse(0.0125, -1.0)


def test_the_requests_of_a_key_are_one_witness() -> None:
    test = ShareTest()
    for _ in range(1000):
        test.add(1.0, 7, 0.05, candidate=True)
    once = test.evidence
    test.add(1.0, 8, 0.05, candidate=True)
    assert once < 3 < test.evidence
    assert not ShareTest.load(test.dump()).is_worse(0.0125, 0.0)


def test_without_keys_each_request_is_a_witness() -> None:
    test = ShareTest()
    for _ in range(5):
        test.add(1.0, None, 0.05, candidate=True)
    assert test.is_worse(0.0125, 0.0)


def test_a_small_difference_is_within_the_margin() -> None:
    test = ShareTest()
    for _ in range(5):
        test.add(1.0, None, 0.05, candidate=True)
    for _ in range(995):
        test.add(0.0, None, 0.05, candidate=True)
    assert test.is_worse(0.0125, 0.0)
    assert not test.is_worse(0.0125, 0.01)


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("test", [ShareTest(), MeanTest()], ids=["share", "mean"])
def test_without_a_choice_nothing_is_evidence(test: SequentialTest, share: float) -> None:
    test.add(1.0, None, share, candidate=True)
    assert test.evidence == 0.0


def test_few_keys_are_remembered() -> None:
    test = ShareTest()
    for key in range(MAX_KEYS + 10):
        test.add(1.0, key, 0.5, candidate=key % 2 == 0)
    assert len(test.keys) == MAX_KEYS


@pytest.mark.parametrize("kind", [ShareTest, MeanTest])
def test_a_test_that_was_stored_goes_on_exactly(kind: type[SequentialTest]) -> None:
    random, straight, resumed = Random(3), kind(), kind()
    for number in range(300):
        value, key, candidate = float(random.random() < 0.3), number % 50, random.random() < 0.2
        straight.add(value, key, 0.2, candidate=candidate)
        resumed.add(value, key, 0.2, candidate=candidate)
        resumed = kind.load(json.loads(json.dumps(resumed.dump())))
    assert straight == resumed


def test_a_test_begins_empty() -> None:
    assert ShareTest.load({}) == ShareTest()
    assert ShareTest().difference(0.05).high == 1.0


def test_requests_without_errors_come_within_the_margin() -> None:
    test, needed = ShareTest(), 0
    while not test.is_within(0.05, 0.02):
        needed += 2
        for candidate in (True, False):
            test.add(0.0, None, 0.5, candidate=candidate)
    assert 1000 < needed < 5000


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_the_interval_has_the_mean_and_shrinks(values: list[float]) -> None:
    arm = ArmSums()
    for value in values:
        arm.add(value)
    assert 0 <= arm.mean <= 1 + 1e-9
    assert arm.radius(0.01) >= arm.radius(0.05) > 0


def test_an_interval_holds_at_all_times() -> None:
    missed = 0
    for seed in range(RUNS):
        random, arm = Random(seed), ArmSums()
        for _ in range(1000):
            arm.add(float(random.random() < 0.1))
            if abs(arm.mean - 0.1) > arm.radius(ALPHA):
                missed += 1
                break
    assert missed <= MOST_FALSE
