"""Checks every pool: queues missing trials, and drives the open rollouts.

Every worker does so every few seconds; a lock in the database admits one at a time, so it does not
matter how many workers there are and which of them die. Whatever takes long (a trial, a check of
isolation) is a job of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import procrastinate
import structlog
from django.db import connection, transaction
from django.utils import timezone
from procrastinate.contrib.django import app as django_app

from tenants import isolation
from tenants.adapters import trials
from tenants.models import (
    AdapterVersion,
    BaseModel,
    GatewayProcess,
    IsolationCheck,
    PoolRevision,
    RevisionMinute,
    Rollout,
)
from tenants.queueing import defer_once
from tenants.rollouts import progress
from tenants.rollouts.driver import (
    CheckIsolation,
    Decision,
    Finish,
    Observed,
    Raise,
    RollBack,
    RolloutWait,
    decide,
)
from tenants.rollouts.progress import Placement

log = structlog.get_logger(__name__)
app: procrastinate.App = django_app

EVERY_S = 5.0
"""Time between two checks by a worker."""
LOCK = 0x504F4F4C
"""Key of the database's advisory lock: "POOL"."""
CHECK_AGAIN = timedelta(seconds=30)
"""Time after a check of isolation without a result before another is queued."""
MINUTES_KEPT = timedelta(days=7)
SHOWN = 20
"""Tenants that a report names at most."""


def check_pools(now: datetime | None = None) -> bool:
    """Check every pool once. Returns False if another worker is doing so."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
            if not cursor.fetchone()[0]:
                return False
        now = now or timezone.now()
        engines = GatewayProcess.objects.engines_of()
        rollouts = Rollout.objects.open().select_related("base_model", "revision")
        for rollout in rollouts.select_for_update(of=("self",)):
            drive(rollout, engines, now)
        for base_model in BaseModel.objects.all():
            keep_tried(base_model, engines)
        RevisionMinute.objects.filter(minute__lt=now - MINUTES_KEPT).delete()
    return True


def keep_tried(base_model: BaseModel, engines: Mapping[str, int]) -> None:
    """Queue the missing trials of callable versions on the revisions they may run on. Excludes the
    revision of a rollout, on which tenants' adapters are tried as their turns come."""
    new = set(base_model.rollouts.open().values_list("revision_id", flat=True))
    for revision in trials.wanted(base_model, engines):
        if engines.get(revision.digest) and revision.pk not in new:
            _try(trials.untried(revision), revision)


def drive(rollout: Rollout, engines: Mapping[str, int], now: datetime) -> Decision:
    """Take the next step of one rollout, if it is due."""
    placed = progress.placement(rollout)
    if engines.get(rollout.revision.digest):
        _try(trials.untried(rollout.revision, [one.id for one in placed.due]), rollout.revision)
    observed = progress.observe(rollout, placed, dict(engines), now)
    decision = decide(progress.plan_of(rollout), observed)
    _report(rollout, placed, observed, decision, now)
    match decision:
        case RollBack(reason=reason):
            rollout.roll_back(reason)
            log.error("rollout_rolled_back", rollout=rollout.name, reason=reason)
        case Raise(weight=weight):
            rollout.set_weight(weight)
            log.info("rollout_raised", rollout=rollout.name, weight=weight)
        case Finish():
            rollout.finish()
            log.info("rollout_finished", rollout=rollout.name)
        case CheckIsolation():
            _check_later(rollout, now)
        case RolloutWait():
            pass
    return decision


def _report(
    rollout: Rollout, placed: Placement, observed: Observed, decision: Decision, now: datetime
) -> None:
    """Store the observations, for people, for metrics and for the next check."""
    since = rollout.report.get("gone_since") or now.isoformat()
    rollout.report = {
        "waits_for": decision.for_ if isinstance(decision, RolloutWait) else "",
        "tenants": placed.tenants,
        "moved": placed.moved,
        "untried": placed.untried,
        "behind": [one.slug for one in placed.behind[:SHOWN]],
        "behind_count": len(placed.behind),
        "gone_since": None if observed.gone_s is None else since,
        "old": progress.figures(observed.old),
        "new": progress.figures(observed.new),
    }
    Rollout.objects.filter(pk=rollout.pk).update(report=rollout.report)


def _try(versions: list[AdapterVersion], revision: PoolRevision) -> None:
    room = trials.AT_A_TIME - trials.queued() if versions else 0
    trials.try_missing(revision, versions[: max(0, room)])


def _check_later(rollout: Rollout, now: datetime) -> None:
    """Queue a check of isolation, unless one is queued, or one within CHECK_AGAIN had no result.
    Checks before the weight was set do not delay it."""
    since = max(now - CHECK_AGAIN, rollout.stepped_at)
    lately = IsolationCheck.objects.filter(base_model=rollout.base_model.name, at__gt=since)
    if not lately.exists():
        id = rollout.base_model_id
        defer_once(check_rollout, f"isolation-{id}", base_model_id=id)


@app.task(name="check_rollout", queue=trials.QUEUE)
def check_rollout(base_model_id: int) -> None:
    """Check isolation on a base model; during a rollout the check uses the new revision."""
    base_model = BaseModel.objects.filter(pk=base_model_id).first()
    if base_model is None:
        return
    try:
        isolation.check(base_model)
    except isolation.NotReady as reason:
        log.info("isolation_not_checked", base_model=base_model.name, why=str(reason))
