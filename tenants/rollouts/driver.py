"""What happens next in a rollout. Pure: a plan and what was seen in, a decision out.

Rules
    1. Guards first, at any weight and also while paused: a check of isolation that failed on the
       new revision, more errors there than the plan allows, first tokens that take too long, or no
       engine of it for ENGINE_GONE_S while tenants are on it. Any of them rolls back.
    2. A weight is raised to the next of the plan when it was watched for long enough, the new
       revision has answered enough requests meanwhile (where any tenant has moved at all), a check
       of isolation passed there since the weight was set, and every live adapter of those tenants
       that would move next was tried there. Who has one that failed stays behind; the others move.
    3. At 100, when that has been watched as well, it is finished, unless somebody stays behind:
       their adapters would have no engine, so an operator decides.

Few requests prove nothing: a share of errors counts from MIN_ERRORS on, times from MIN_TIMES.
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
"""First tokens within that are soon enough, however much sooner others are."""
ENGINE_GONE_S = 60.0
"""Engines that are started again are back within it; until then others take over."""


@dataclass(frozen=True, slots=True)
class Plan:
    """As `tenants.models.Rollout` says of these fields."""

    weight: int
    next_weight: int | None
    step_s: float
    min_requests: int
    max_error_percent: float
    max_ttft_ratio: float | None
    needs_isolation: bool
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """What requests met on the new revision, or on the present ones."""

    requests: int = 0
    errors: int = 0
    first_tokens: Sequence[int] = ()
    """By bucket of DURATION_S."""

    @property
    def error_percent(self) -> float:
        return 100.0 * self.errors / self.requests if self.requests else 0.0

    @property
    def ttft_p95_s(self) -> float | None:
        """At most, as buckets have it; None of too few. What is above all bounds is the last bound
        twice over."""
        sums = list(accumulate(self.first_tokens))
        if not sums or sums[-1] < MIN_TIMES:
            return None
        bounds: tuple[float, ...] = (*DURATION_S, 2 * DURATION_S[-1])
        return bounds[bisect_left(sums, 0.95 * sums[-1])]


@dataclass(frozen=True, slots=True)
class Seen:
    """A rollout at one moment; times in seconds."""

    step_age_s: float
    """Since it got its weight."""
    old: Side
    new: Side
    """Lately, at this weight."""
    answered: int
    """Requests that the new revision has answered at this weight."""
    gone_s: float | None
    """Since when no engine of the new revision is there; None: there is one."""
    moved: int
    """Tenants on the new revision."""
    untried: int
    """Live adapters of tenants that are on it or move next, which were not tried there yet."""
    behind: int
    """Tenants whose turn it is, or would be next, with a live adapter that failed there."""
    isolation: bool | None
    """What the last check on the new revision at this weight told; None: none did."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing yet; `for_` says what it waits for."""

    for_: str


@dataclass(frozen=True, slots=True)
class CheckIsolation(Wait):
    """As `Wait`, for a check that somebody has to make."""


@dataclass(frozen=True, slots=True)
class Raise:
    weight: int


@dataclass(frozen=True, slots=True)
class Finish:
    pass


@dataclass(frozen=True, slots=True)
class RollBack:
    reason: str


Decision = Wait | Raise | Finish | RollBack


def decide(plan: Plan, seen: Seen) -> Decision:
    """What happens next."""
    if (reason := failed_guard(plan, seen)) is not None:
        return RollBack(reason)
    if plan.paused:
        return Wait("an operator, who paused it")
    if seen.gone_s is not None:
        return Wait("an engine of the new revision")
    if (wait := _not_yet(plan, seen)) is not None:
        return wait
    if plan.next_weight is not None:
        return Raise(plan.next_weight)
    if seen.behind:
        return Wait(
            f"an operator: {_tenants(seen.behind)} cannot move, as an adapter failed on the new "
            "revision"
        )
    return Finish()


def failed_guard(plan: Plan, seen: Seen) -> str | None:
    """Why it has to be rolled back; None: nothing speaks against it. Rule 1."""
    if seen.isolation is False:
        return "The check of isolation failed on the new revision."
    old, new = seen.old, seen.new
    allowed = old.error_percent + plan.max_error_percent
    if new.errors >= MIN_ERRORS and new.error_percent > allowed:
        return (
            f"{new.error_percent:.1f}% of {new.requests} requests failed on the new revision; "
            f"{allowed:.1f}% may ({old.error_percent:.1f}% failed on the present ones)."
        )
    if plan.max_ttft_ratio is not None:
        before_s, now_s = old.ttft_p95_s, new.ttft_p95_s
        if before_s is not None and now_s is not None:
            most_s = max(SOON_S, plan.max_ttft_ratio * before_s)
            if now_s > most_s:
                return (
                    f"First tokens take up to {now_s:.2f} s on the new revision (p95); "
                    f"{most_s:.2f} s are allowed ({before_s:.2f} s on the present ones)."
                )
    if plan.weight and seen.gone_s is not None and seen.gone_s >= ENGINE_GONE_S:
        return f"No engine of the new revision was there for {seen.gone_s:.0f} s."
    return None


def _not_yet(plan: Plan, seen: Seen) -> Wait | None:
    """What the next step waits for. Rule 2."""
    if plan.weight and seen.step_age_s < plan.step_s:
        left_s = plan.step_s - seen.step_age_s
        return Wait(f"{left_s:.0f} s more at {plan.weight}%")
    if plan.weight and seen.moved and seen.answered < plan.min_requests:
        return Wait(
            f"{plan.min_requests - seen.answered} more requests on the new revision at "
            f"{plan.weight}%"
        )
    if seen.untried:
        number = "adapter" if seen.untried == 1 else "adapters"
        return Wait(f"{seen.untried} {number} to be tried on the new revision")
    if plan.needs_isolation and seen.isolation is None:
        return CheckIsolation("a check of isolation on the new revision")
    return None


def _tenants(count: int) -> str:
    return "1 tenant" if count == 1 else f"{count} tenants"
