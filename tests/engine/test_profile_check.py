"""What the check of a profile holds against it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from inference.agent.engines.profiles.named import NamedProfile, read
from inference.agent.profile_check.comparing import MAX_FAULTS, compared
from inference.agent.profile_check.observing import ProfileObservations

IDS = {f"base: question {i}": [i, 2, 3] for i in range(MAX_FAULTS)}
PLAIN = ProfileObservations(dict(IDS), dict(IDS), dict(IDS), [-1.0, -2.0])


def profile(promise: str, **more: Any) -> NamedProfile:
    return read("mine", {"summary": "x", "lora": "x", "promise": promise, **more})


def changed(**fields: Any) -> ProfileObservations:
    made = copy.deepcopy(PLAIN)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_equal_answers_keep_every_promise() -> None:
    for one in (profile("exact"), profile("close", tolerance=0.1)):
        found = compared(one, PLAIN, changed())
        assert (found.equal, found.answers, found.difference) == (
            3 * MAX_FAULTS,
            3 * MAX_FAULTS,
            0.0,
        )
        assert found.faults == []


@pytest.mark.parametrize("way", ["alone", "together", "continued"])
def test_another_token_breaks_an_exact_promise(way: str) -> None:
    own = changed(**{way: IDS | {"base: question 1": [1, 2, 4]}})
    found = compared(profile("exact"), PLAIN, own)
    assert found.faults == [f"base: question 1 ({way}): another answer than plain's"]
    close = compared(profile("close", tolerance=0.1), PLAIN, own)
    assert (close.faults, close.equal) == ([], 3 * MAX_FAULTS - 1)


def test_log_probabilities_may_differ_as_far_as_promised() -> None:
    own = changed(logprobs=[-1.0, -2.05])
    assert compared(profile("close", tolerance=0.1), PLAIN, own).faults == []
    (fault,) = compared(profile("close", tolerance=0.01), PLAIN, own).faults
    assert fault == "a log-probability differs by 0.0500: the profile promises at most 0.01"
    (fault,) = compared(profile("exact"), PLAIN, own).faults
    assert fault.endswith("promises at most 0.001")


def test_log_probabilities_of_answers_count_up_to_the_first_other_token() -> None:
    plain = changed(generated={"base: question 1": [(1, -0.1), (2, -0.2), (3, -0.3)]})
    own = changed(generated={"base: question 1": [(1, -0.1), (2, -0.5), (4, -9.0)]})
    found = compared(profile("close", tolerance=0.4), plain, own)
    assert found.difference == pytest.approx(0.3) and found.faults == []
    assert compared(profile("exact"), plain, own).faults


@pytest.mark.parametrize("values", [[-1.0], [-1.0, float("nan")]])
def test_missing_numbers_are_a_fault(values: list[float]) -> None:
    assert compared(profile("close", tolerance=9.0), PLAIN, changed(logprobs=values)).faults


def test_many_faults_are_counted() -> None:
    wrong = {name: [0] for name in IDS}
    found = compared(profile("exact"), PLAIN, changed(alone=wrong, together=wrong, faults=["leak"]))
    assert found.faults[0] == "leak" and found.faults[-1] == "and 6 more"
