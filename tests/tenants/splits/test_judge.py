"""The decision about a split's next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tenants.splits.judge import (
    Act,
    GuardVerdict,
    JudgedGuard,
    SplitPlan,
    decide,
    verdict_of,
)
from tenants.splits.sequential import ShareTest

pytestmark = pytest.mark.pure

PLAN = SplitPlan(
    weight=25,
    next_weight=50,
    min_requests=100,
    max_requests=10_000,
    max_hours=24,
    rolls_back=True,
    promotes=True,
    paused=False,
    requests=1000,
    step_requests=100,
    hours=1,
)
PASSED = JudgedGuard("errors", GuardVerdict.PASSED)
FAILED = JudgedGuard("score", GuardVerdict.FAILED)
OPEN = JudgedGuard("cuts", GuardVerdict.UNDECIDED)


@pytest.mark.parametrize(
    ("changes", "guards", "act", "said"),
    [
        ({}, [OPEN], Act.RAISE, "No guard failed in 100 requests at 25%."),
        ({"step_requests": 99}, [PASSED], Act.HOLD, "Waits for 1 more request of the candidate"),
        ({"step_requests": 0}, [PASSED], Act.HOLD, "Waits for 100 more requests"),
        ({"next_weight": None}, [PASSED, OPEN], Act.HOLD, "Not certain yet: cuts."),
        ({"next_weight": None}, [PASSED], Act.PROMOTE, "All guards passed."),
        ({"next_weight": None, "promotes": False}, [PASSED], Act.HOLD, "Promote the candidate"),
        ({"next_weight": None, "blocked": "No run."}, [PASSED], Act.HOLD, "passed. No run."),
        ({"hours": 25, "next_weight": None, "blocked": "x"}, [PASSED], Act.END, "after 24 hours"),
        ({"step_requests": 0}, [PASSED, FAILED], Act.ROLL_BACK, "The candidate is worse: score."),
        ({"rolls_back": False}, [FAILED], Act.HOLD, "Roll it back or promote it."),
        ({"paused": True}, [FAILED], Act.HOLD, "It is paused."),
        ({"requests": 10_000}, [OPEN], Act.END, "No decision after 10,000 requests."),
        ({"hours": 24.5}, [OPEN], Act.END, "No decision after 24 hours."),
        ({"requests": 10_000}, [FAILED], Act.ROLL_BACK, "worse"),
        ({"missed": "It missed."}, [OPEN], Act.ROLL_BACK, "It missed."),
        ({"missed": "It missed.", "rolls_back": False}, [PASSED], Act.HOLD, "run the eval again."),
        ({"missed": "x", "rolls_back": False, "hours": 25}, [PASSED], Act.END, "after 24 hours"),
        ({"missed": "x", "paused": True}, [PASSED], Act.HOLD, "It is paused."),
        ({"missed": "x", "promotes": False}, [PASSED], Act.ROLL_BACK, "x"),
        ({"requests": 10_000, "next_weight": None}, [PASSED], Act.PROMOTE, "All guards passed."),
    ],
)
def test_decisions(changes: dict[str, Any], guards: list[JudgedGuard], act: Act, said: str) -> None:
    decision = decide(replace(PLAN, **changes), guards)
    assert decision.act == act and said in decision.reason


def test_verdicts() -> None:
    test = ShareTest()
    assert verdict_of(test, 0.02, 1) == GuardVerdict.UNDECIDED
    for _ in range(3000):
        for candidate in (True, False):
            test.add(0.0, None, 0.5, candidate=candidate)
    assert verdict_of(test, 0.02, 1) == GuardVerdict.PASSED
    for _ in range(3000):
        test.add(1.0, None, 0.5, candidate=True)
    assert verdict_of(test, 0.02, 1) == GuardVerdict.FAILED
