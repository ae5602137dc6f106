"""Decides the next step of a rollout. Pure: a plan and observations in, a decision out.

Rules
    1. Guards first, at any weight and also while paused: a check of isolation that failed on the
       new revision, more errors there than the plan allows, first tokens that take too long, or no
       engine of it for ENGINE_GONE_S while its weight is above 0. Any of them rolls back.
    2. The weight is raised to the next of the plan once it has been observed for long enough, the
       new revision has answered enough requests meanwhile (if any tenant has moved at all), a check
       of isolation has passed there since the weight was set, and every live adapter of the tenants
       that would move next has been tried there. A tenant with a failed adapter stays behind; the
       others move.
    3. At 100, once that has been observed as well, the rollout is finished, unless a tenant stays
       behind: its adapters would have no engine, so an operator decides.

Few requests prove nothing: the share of errors counts only from MIN_ERRORS errors, the time to
first token only from MIN_TIMES requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from inference.gateway.measuring.measures import DURATION_S

MIN_ERRORS = 3
MIN_TIMES = 20
SOON_S = 0.1
"""A time to first token within this is always acceptable, however fast the other revisions are."""
ENGINE_GONE_S = 60.0
"""A restarted engine is back within this time; until then other revisions take over."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The fields of a `tenants.models.Rollout` that decisions depend on; documented there."""

    weight: int
    next_weight: int | None
    step_s: float
    min_requests: int
    max_error_percent: float
    max_ttft_ratio: float | None
    needs_isolation: bool
    paused: bool = False


@dataclass(frozen=True, slots=True)
class RolloutSide:
    """Outcomes of requests on the new revision, or on the present ones."""

    requests: int = 0
    errors: int = 0
    first_tokens: Sequence[int] = ()
    """Requests by the bucket of DURATION_S of their time to first token."""

    @property
    def error_percent(self) -> float:
        return 100.0 * self.errors / self.requests if self.requests else 0.0

    @property
    def ttft_p95_s(self) -> float | None:
        """The upper bound of the p95's bucket; twice the last bound if it is above all. None if
        there are too few requests."""
        sums = list(accumulate(self.first_tokens))
        if not sums or sums[-1] < MIN_TIMES:
            return None
        bounds: tuple[float, ...] = (*DURATION_S, 2 * DURATION_S[-1])
        return bounds[bisect_left(sums, 0.95 * sums[-1])]


@dataclass(frozen=True, slots=True)
class Observed:
    """The observations of a rollout at one moment; times in seconds."""

    step_age_s: float
    """Time since the weight was set."""
    old: RolloutSide
    new: RolloutSide
    """Recent requests at this weight."""
    answered: int
    """Requests that the new revision has answered at this weight."""
    gone_s: float | None
    """How long the new revision has had no engine; None if it has one."""
    moved: int
    """Tenants on the new revision."""
    untried: int
    """Live adapters of tenants that are on it or move next, which were not tried there yet."""
    behind: int
    """Tenants whose turn it is, or would be next, with a live adapter that failed there."""
    isolation: bool | None
    """Whether checks of isolation passed on the new revision (`progress`); None if none has had a
    result at this weight."""


@dataclass(frozen=True, slots=True)
class RolloutWait:
    """Do nothing yet; `for_` says what the rollout waits for."""

    for_: str


@dataclass(frozen=True, slots=True)
class CheckIsolation(RolloutWait):
    """Wait for a check of isolation, which has to be started."""


@dataclass(frozen=True, slots=True)
class Raise:
    weight: int


@dataclass(frozen=True, slots=True)
class Finish:
    pass


@dataclass(frozen=True, slots=True)
class RollBack:
    reason: str


Decision = RolloutWait | Raise | Finish | RollBack


def decide(plan: RolloutPlan, observed: Observed) -> Decision:
    """The next step."""
    if (reason := failed_guard(plan, observed)) is not None:
        return RollBack(reason)
    if plan.paused:
        return RolloutWait("an operator to resume it")
    if observed.gone_s is not None:
        return RolloutWait("an engine of the new revision")
    if (wait := _not_yet(plan, observed)) is not None:
        return wait
    if plan.next_weight is not None:
        return Raise(plan.next_weight)
    if observed.behind:
        return RolloutWait(
            f"an operator: {_counted(observed.behind, 'tenant')} cannot move because an adapter "
            "failed on the new revision"
        )
    return Finish()


def failed_guard(plan: RolloutPlan, observed: Observed) -> str | None:
    """Why the rollout has to be rolled back; None if no guard failed. Rule 1."""
    if observed.isolation is False:
        return "The isolation check failed on the new revision."
    old, new = observed.old, observed.new
    allowed = old.error_percent + plan.max_error_percent
    if new.errors >= MIN_ERRORS and new.error_percent > allowed:
        return (
            f"{new.error_percent:.1f}% of {new.requests} requests failed on the new revision. The "
            f"limit is {allowed:.1f}%; on the current revisions {old.error_percent:.1f}% failed."
        )
    if plan.max_ttft_ratio is not None:
        before_s, now_s = old.ttft_p95_s, new.ttft_p95_s
        if before_s is not None and now_s is not None:
            most_s = max(SOON_S, plan.max_ttft_ratio * before_s)
            if now_s > most_s:
                return (
                    f"The TTFT p95 on the new revision is {now_s:.2f} s. The limit is "
                    f"{most_s:.2f} s; on the current revisions it is {before_s:.2f} s."
                )
    if plan.weight and observed.gone_s is not None and observed.gone_s >= ENGINE_GONE_S:
        return f"The new revision has had no engine for {observed.gone_s:.0f} s."
    return None


def _not_yet(plan: RolloutPlan, observed: Observed) -> RolloutWait | None:
    """What the next step waits for. Rule 2."""
    if plan.weight and observed.step_age_s < plan.step_s:
        left_s = plan.step_s - observed.step_age_s
        return RolloutWait(f"{left_s:.0f} s more at {plan.weight}%")
    if plan.weight and observed.moved and observed.answered < plan.min_requests:
        return RolloutWait(
            f"{_counted(plan.min_requests - observed.answered, 'more request')} on the new "
            f"revision at {plan.weight}%"
        )
    if observed.untried:
        return RolloutWait(
            f"the test of {_counted(observed.untried, 'adapter')} on the new revision"
        )
    if plan.needs_isolation and observed.isolation is None:
        return CheckIsolation("an isolation check on the new revision")
    return None


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
