"""What nobody changes a row for is looked for once a minute: what is nearly used up, expires, or
has gone. Each is told of once."""

from __future__ import annotations

from datetime import datetime, timedelta

import procrastinate
from django.utils import timezone
from procrastinate.contrib.django import app as django_app

from inference.grants import MICRO
from tenants.billing.months import day_start, month_start
from tenants.billing.reconciliation import drifts
from tenants.limits import ceilings
from tenants.limits.kinds import KINDS
from tenants.limits.kinds import Kind as LimitKind
from tenants.models import ApiKey, EngineCredential, LimitScope, Tenant, UsageSum
from tenants.models.notifications import Kind, Notification, Target

app: procrastinate.App = django_app

EXPIRES_SOON = timedelta(days=7)
LOST_AFTER = timedelta(minutes=3)
"""Engines are noted once a minute while they are connected."""
FORGOTTEN_AFTER = timedelta(days=1)
PARTS = (100, 80)
"""Percents of a budget, the highest first."""

post = Notification.objects.post


@app.periodic(cron="* * * * *")
@app.task(name="watch", queueing_lock="watch")
def watch(timestamp: int) -> None:
    """Each minute: tell of what has come to pass."""
    now = timezone.now()
    keys(now)
    budgets(now)
    engines(now)
    ledger(now)
    Notification.objects.long_past().delete()


def _wanted(kind: Kind) -> set[int | None]:
    """The tenants with a target for this kind; None among them is the installation."""
    targets = Target.objects.filter(kinds__contains=[kind.value], ended_at=None)
    return set(targets.values_list("tenant_id", flat=True))


def keys(now: datetime) -> None:
    """Keys that expire within a week."""
    soon = ApiKey.objects.with_text().filter(
        tenant__in=[id for id in _wanted(Kind.KEY_EXPIRING) if id],
        revoked_at=None, expires_at__gt=now, expires_at__lte=now + EXPIRES_SOON,
    )  # fmt: skip
    for key in soon.select_related("tenant"):
        assert key.expires_at is not None
        data = {"key": key.name, "prefix": key.prefix, "expires_at": key.expires_at.isoformat()}
        once = f"{key.pk} {key.expires_at.isoformat()}"
        post(Kind.KEY_EXPIRING, data, tenant=key.tenant, once=once)


def budgets(now: datetime) -> None:
    """Budgets of tenants of which 80 or 100 % are used."""
    for tenant in Tenant.objects.filter(pk__in=[id for id in _wanted(Kind.BUDGET_REACHED) if id]):
        in_force = ceilings.in_force(LimitScope(tenant).sets())
        for kind in KINDS.values():
            limit = in_force[kind.name]
            if kind.is_budget and limit:
                _budget(tenant, kind, limit, now)


def _budget(tenant: Tenant, kind: LimitKind, limit: int, now: datetime) -> None:
    since = day_start(now) if kind.window == "day" else month_start(now)
    sums = next(iter(UsageSum.objects.filter(tenant=tenant).sums([], since, now)), None)
    if sums is None:
        return
    tokens = int(sums["prompt_tokens"] + sums["completion_tokens"])
    used = int(sums["cost"]) // MICRO if kind.is_money else tokens
    reached = next((part for part in PARTS if used * 100 >= limit * part), None)
    if reached is not None:
        data = {"budget": kind.name, "percent": reached, "used": used, "limit": limit}
        once = f"{kind.name} {since:%Y-%m-%d} {reached}"
        post(Kind.BUDGET_REACHED, data, tenant=tenant, once=once)


def engines(now: datetime) -> None:
    """Engines that were connected within the last day, and are not any more."""
    if None not in _wanted(Kind.ENGINE_LOST):
        return
    gone = EngineCredential.objects.filter(
        revoked_at=None, last_seen_at__gt=now - FORGOTTEN_AFTER, last_seen_at__lt=now - LOST_AFTER
    )
    for one in gone:
        assert one.last_seen_at is not None
        data = {"engine": one.name, "last_seen_at": one.last_seen_at.isoformat()}
        post(Kind.ENGINE_LOST, data, once=f"{one.pk} {one.last_seen_at.isoformat()}")


def ledger(now: datetime) -> None:
    """Engines' journals that the ledger differs from; once a day each."""
    if None not in _wanted(Kind.LEDGER_DRIFT):
        return
    for drift in drifts():
        if drift:
            data = {"engine": drift.journal.engine_id, "journal": drift.journal.journal,
                    "requests": drift.requests, "tokens": drift.tokens}  # fmt: skip
            post(Kind.LEDGER_DRIFT, data, once=f"{drift.journal.journal} {now:%Y-%m-%d}")
