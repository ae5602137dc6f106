"""Decides what is next for a split. Pure: its plan and its guards' tests in, a decision out.

Rules
    1. A guard that is certain that the candidate is worse, by more than its margin, has failed. The
       chance that any guard ever says so of a candidate that is no worse is at most ALPHA, because
       each of them is asked with an equal part of it.
    2. The weight is raised to the next of the plan once the candidate has answered enough requests
       at the present one.
    3. At the last weight, with enough requests there, the candidate has passed if every guard is
       certain that it is not worse by more than its margin.
    4. A candidate that passed and is to be promoted by itself waits if it is `blocked`. One that
       `missed` the eval of its alias has failed, as by rule 1.
    5. A split with too many requests, or that has run too long, is inconclusive.

A guard without any request that counts, such as a score that nobody gave, never passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenants.splits.sequential import SequentialTest

ALPHA = 0.05
"""The chance of ever rolling back a candidate that is no worse."""


class GuardVerdict(StrEnum):
    FAILED = "failed"
    PASSED = "passed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class JudgedGuard:
    """A guard, in words, with its verdict."""

    label: str
    verdict: GuardVerdict


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The fields of a `tenants.models.Split` that decisions depend on, and how far it is."""

    weight: int
    next_weight: int | None
    min_requests: int
    max_requests: int
    max_hours: float
    rolls_back: bool
    promotes: bool
    paused: bool
    requests: int
    """Of both versions."""
    step_requests: int
    """Of the candidate, since the weight was set."""
    hours: float
    """Since it began."""
    blocked: str = ""
    """Why the candidate may not be promoted, such as an eval that it did not pass; in words."""
    missed: str = ""
    """That it failed in the run of the eval that was started for this split, in words."""


class Act(StrEnum):
    HOLD = "hold"
    RAISE = "raise"
    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    END = "end"
    """Inconclusive."""


@dataclass(frozen=True, slots=True)
class SplitDecision:
    act: Act
    reason: str
    """In words: why, or what it waits for."""


def verdict_of(test: SequentialTest, margin: float, guards: int) -> GuardVerdict:
    """What the test says so far, as one of so many guards."""
    alpha = ALPHA / guards
    if test.is_worse(alpha, margin):
        return GuardVerdict.FAILED
    return GuardVerdict.PASSED if test.is_within(alpha, margin) else GuardVerdict.UNDECIDED


def decide(plan: SplitPlan, guards: Sequence[JudgedGuard]) -> SplitDecision:
    """The next act."""
    failed = _with(guards, GuardVerdict.FAILED)
    undecided = _with(guards, GuardVerdict.UNDECIDED)
    worse = f"The candidate is worse: {failed}." if failed else plan.missed
    passed = not worse and not undecided and plan.next_weight is None and not plan.blocked
    if plan.paused:
        return SplitDecision(Act.HOLD, "It is paused.")
    if worse and plan.rolls_back:
        return SplitDecision(Act.ROLL_BACK, worse)
    if not (passed and plan.promotes) and (limit := _limit(plan)):
        return SplitDecision(Act.END, f"No decision after {limit}.")
    if worse:
        rest = "Roll it back or promote it." if failed else "Roll it back or run the eval again."
        return SplitDecision(Act.HOLD, f"{worse} {rest}")
    if (missing := plan.min_requests - plan.step_requests) > 0:
        requests = "request" if missing == 1 else "requests"
        reason = f"Waits for {missing:,} more {requests} of the candidate at {plan.weight}%."
        return SplitDecision(Act.HOLD, reason)
    if plan.next_weight is not None:
        reason = f"No guard failed in {plan.step_requests:,} requests at {plan.weight}%."
        return SplitDecision(Act.RAISE, reason)
    return _at_last_weight(plan, undecided)


def _at_last_weight(plan: SplitPlan, undecided: str) -> SplitDecision:
    if undecided:
        return SplitDecision(Act.HOLD, f"Not certain yet: {undecided}.")
    if plan.promotes and plan.blocked:
        return SplitDecision(Act.HOLD, f"All guards passed. {plan.blocked}")
    if plan.promotes:
        return SplitDecision(Act.PROMOTE, "All guards passed.")
    return SplitDecision(Act.HOLD, "All guards passed. Promote the candidate or roll it back.")


def _limit(plan: SplitPlan) -> str:
    """The limit of rule 5 that is reached, in words; empty if none is."""
    if plan.requests >= plan.max_requests:
        return f"{plan.requests:,} requests"
    return f"{plan.max_hours:g} hours" if plan.hours >= plan.max_hours else ""


def _with(guards: Sequence[JudgedGuard], verdict: GuardVerdict) -> str:
    """The guards with this verdict, listed."""
    return ", ".join(one.label for one in guards if one.verdict == verdict)
