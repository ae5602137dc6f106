"""The placement of tenants in a rollout, and the outcomes of their requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from inference import pools
from inference.gateway.measuring.traffic import RevisionTraffic
from tenants.models import (
    LIVE,
    Adapter,
    IsolationCheck,
    PoolRevision,
    RevisionMinute,
    Rollout,
    RolloutState,
    Standing,
    Tenant,
    Turn,
)
from tenants.naming import ACTIVE, ISOLATION_TENANTS
from tenants.rollouts.driver import Observed, RolloutPlan, RolloutSide

WINDOW = timedelta(minutes=10)
"""How far guards look back, within the time at the present weight."""
BASELINE = timedelta(hours=1)
"""The baseline of the present revisions begins this long before the rollout."""


@dataclass(frozen=True, slots=True)
class Member:
    """A tenant with live adapters on the base model, and their trials on the new revision."""

    id: int
    slug: str
    live: int
    passed: int
    failed: int

    @property
    def untried(self) -> int:
        return self.live - self.passed - self.failed


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the tenants are."""

    tenants: int
    """Active tenants, without the platform's own."""
    moved: int
    behind: list[Member]
    """Tenants whose turn it is, or would be next, with an adapter that failed."""
    due: list[Member]
    """Tenants whose turn it is, or would be next, with adapters that were not tried yet."""

    @property
    def untried(self) -> int:
        return sum(member.untried for member in self.due)


def turns(rollout: Rollout, weight: int) -> pools.PoolRollout:
    """The rollout in the form by which gateways route, at this weight."""
    by_turn: dict[str, set[str]] = {Turn.FIRST: set(ISOLATION_TENANTS), Turn.LAST: set()}
    for slug, turn in rollout.tenants.values_list("tenant__slug", "turn"):
        by_turn[turn].add(slug)
    first, last = frozenset(by_turn[Turn.FIRST]), frozenset(by_turn[Turn.LAST])
    return pools.PoolRollout(rollout.pk, rollout.revision.digest, weight, first, last)


def placement(rollout: Rollout) -> Placement:
    """Where the tenants are now."""
    now = turns(rollout, rollout.weight)
    then = turns(rollout, rollout.next_weight or rollout.weight)
    members = {member.slug: member for member in _members(rollout)}
    slugs = Tenant.objects.filter(status=ACTIVE).values_list("slug", flat=True)
    customers = [slug for slug in slugs if slug not in ISOLATION_TENANTS]
    ready = {slug for slug, one in members.items() if one.passed == one.live}
    moved = [
        slug for slug in customers if now.takes(slug) and (slug not in members or slug in ready)
    ]
    next_ = [one for one in members.values() if now.takes(one.slug) or then.takes(one.slug)]
    return Placement(
        tenants=len(customers),
        moved=len(moved),
        behind=[one for one in next_ if one.failed],
        due=[one for one in next_ if one.untried],
    )


def _members(rollout: Rollout) -> Iterator[Member]:
    on = Q(aliases__version__trials__revision=rollout.revision)
    rows = (
        Adapter.objects.filter(
            base_model=rollout.base_model_id,
            short_lived=False,
            aliases__name=LIVE,
            tenant__status=ACTIVE,
        )
        .values("tenant_id", "tenant__slug")
        .annotate(
            live=Count("id", distinct=True),
            passed=Count("id", on & Q(aliases__version__trials__passed=True), distinct=True),
            failed=Count("id", on & Q(aliases__version__trials__passed=False), distinct=True),
        )
        .order_by("tenant__slug")
    )
    for row in rows:
        yield Member(
            row["tenant_id"], row["tenant__slug"], row["live"], row["passed"], row["failed"]
        )


def plan_of(rollout: Rollout) -> RolloutPlan:
    return RolloutPlan(
        weight=rollout.weight,
        next_weight=rollout.next_weight,
        step_s=rollout.step_s,
        min_requests=rollout.min_requests,
        max_error_percent=rollout.max_error_percent,
        max_ttft_ratio=rollout.max_ttft_ratio,
        needs_isolation=rollout.needs_isolation,
        paused=rollout.state == RolloutState.PAUSED,
    )


def sides(rollout: Rollout, now: datetime) -> tuple[RolloutSide, RolloutSide]:
    """Recent outcomes of requests on the present revisions and on the new one."""
    others = PoolRevision.objects.filter(
        base_model_id=rollout.base_model_id, standing=Standing.SERVING
    ).exclude(pk=rollout.revision_id)
    since = max(rollout.stepped_at, now - WINDOW)
    before = min(rollout.created_at, now) - BASELINE
    return side(others, before), side([rollout.revision], since)


def side(revisions: Collection[PoolRevision] | Any, since: datetime) -> RolloutSide:
    """Outcomes of requests on these revisions since then, to the minute."""
    found, met = _minutes(since).filter(revision__in=revisions), RevisionTraffic()
    for one in found.only("requests", "errors", "first_tokens"):
        met.add(RevisionTraffic(one.requests, one.errors, one.first_tokens))
    return RolloutSide(met.requests, met.errors, tuple(met.first_tokens))


def _minutes(since: datetime) -> QuerySet[RevisionMinute]:
    return RevisionMinute.objects.filter(minute__gte=since.replace(second=0, microsecond=0))


def observe(
    rollout: Rollout, placed: Placement, engines: dict[str, int], now: datetime
) -> Observed:
    """The rollout at this moment; `engines` is the number of engines by revision digest."""
    old, new = sides(rollout, now)
    gone_s = None
    if not engines.get(rollout.revision.digest):
        gone_since = rollout.report.get("gone_since")
        gone_s = (now - datetime.fromisoformat(gone_since)).total_seconds() if gone_since else 0.0
    return Observed(
        step_age_s=(now - rollout.stepped_at).total_seconds(),
        old=old,
        new=new,
        answered=_answered(rollout),
        gone_s=gone_s,
        moved=placed.moved,
        untried=placed.untried,
        behind=len(placed.behind),
        isolation=_isolation(rollout),
    )


def _answered(rollout: Rollout) -> int:
    found = _minutes(rollout.stepped_at).filter(revision=rollout.revision)
    return int(found.aggregate(sum=Sum("requests"))["sum"] or 0)


def _isolation(rollout: Rollout) -> bool | None:
    """Failures count since the rollout began, passes only since its weight was set."""
    checks = IsolationCheck.objects.filter(
        base_model=rollout.base_model.name,
        revision=rollout.revision.digest,
        passed__isnull=False,
        at__gte=rollout.created_at,
    )
    if checks.filter(passed=False).exists():
        return False
    return True if checks.filter(at__gte=rollout.stepped_at).exists() else None


def report(rollout: Rollout) -> dict[str, Any]:
    """The last report on the rollout with current figures, for people."""
    nothing = {"waits_for": "", "tenants": 0, "moved": 0, "untried": 0, "behind": []}
    last = {**nothing, "behind_count": 0, **rollout.report}
    last.pop("gone_since", None)
    old, new = sides(rollout, rollout.ended_at or timezone.now())
    return last | {"old": figures(old), "new": figures(new)}


def figures(one: RolloutSide) -> dict[str, Any]:
    """The side as values for JSON."""
    return {
        "requests": one.requests,
        "errors": one.errors,
        "error_percent": round(one.error_percent, 2),
        "ttft_p95_s": one.ttft_p95_s,
    }
