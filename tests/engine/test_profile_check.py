"""What the check of a profile holds against it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.profiles.named import NamedProfile, read
from inference.agent.profile_check.comparing import MAX_FAULTS, compared
from inference.agent.profile_check.observing import ProfileObservations
from inference.agent.profile_check.running import ProfileChecker

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
        assert (found.equal, found.answers) == (3 * MAX_FAULTS, 3 * MAX_FAULTS)
        assert (found.largest, found.mean) == (0.0, 0.0)
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
    assert compared(profile("close", tolerance=0.03), PLAIN, own).faults == []
    (fault,) = compared(profile("close", tolerance=0.02), PLAIN, own).faults
    assert fault == (
        "log-probabilities differ by 0.0250 on average: the profile promises at most 0.02"
    )
    (fault,) = compared(profile("exact"), PLAIN, own).faults
    assert fault == "a log-probability differs by 0.0500: the profile promises at most 0.001"


def test_log_probabilities_of_answers_count_up_to_the_first_other_token() -> None:
    plain = changed(generated={"base: question 1": [(1, -0.1), (2, -0.2), (3, -0.3)]})
    own = changed(generated={"base: question 1": [(1, -0.1), (2, -0.5), (4, -9.0)]})
    found = compared(profile("close", tolerance=0.4), plain, own)
    assert found.largest == pytest.approx(0.3) and found.faults == []
    assert found.mean == pytest.approx(0.3 / 4)  # of two tokens of the answer, and two of prompts
    assert compared(profile("exact"), plain, own).faults


@pytest.mark.parametrize("values", [[-1.0], [-1.0, float("nan")]])
def test_missing_numbers_are_a_fault(values: list[float]) -> None:
    assert compared(profile("close", tolerance=9.0), PLAIN, changed(logprobs=values)).faults


@pytest.mark.parametrize(("rounded", "faults"), [(-2.0, 1), (-2.01, 0)])
def test_a_quantisation_without_effect_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounded: float, faults: int
) -> None:
    """Numbers that are those of plain in the same dtype say that nothing was quantised."""
    file = tmp_path / "house.toml"
    file.write_text(
        'summary = "x"\nlora = "x"\npromise = "close"\ntolerance = 0.1\n'
        '[vllm]\ndtype = "bfloat16"\nquantization = "experts_int8"'
    )

    def observed(_: ProfileChecker, name: str, *more: str) -> ProfileObservations:
        return changed(logprobs=[-1.0, rounded]) if name == str(file) else PLAIN

    monkeypatch.setattr(ProfileChecker, "_observed", observed)
    proof = ProfileChecker(tmp_path, "m", {}).check(str(file))
    fault = "quantization has no effect: all numbers are as with plain in bfloat16"
    assert proof.faults == [fault] * faults


def test_many_faults_are_counted() -> None:
    wrong = {name: [0] for name in IDS}
    found = compared(profile("exact"), PLAIN, changed(alone=wrong, together=wrong, faults=["leak"]))
    assert found.faults[0] == "leak" and found.faults[-1] == "and 6 more"
