"""Checks once a minute for events that no change of a row announces: budgets nearly used up, keys
that expire, engines that are lost, alerts of requests. Each is notified once."""

from __future__ import annotations

from datetime import datetime, timedelta

import procrastinate
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from procrastinate.contrib.django import app as django_app

from tenants.billing.reconciliation import drifts
from tenants.fleet import limit_usage
from tenants.limits import ceilings
from tenants.limits.kinds import KINDS
from tenants.limits.kinds import LimitKind as LimitKind
from tenants.models import ApiKey, EngineCredential, LimitScope, LimitSet, Tenant, UsageSum
from tenants.models.notifications import Notification, NotificationKind
from tenants.models.usage.sums import SumSpan
from tenants.notifications import alerts
from tenants.utc import day_start, month_start

app: procrastinate.App = django_app

EXPIRES_SOON = timedelta(days=7)
LOST_AFTER = timedelta(minutes=3)
"""Longer than a minute, because connected engines are recorded once a minute."""
FORGOTTEN_AFTER = timedelta(days=1)
USED_LATELY = timedelta(hours=2)
"""Longer than an hour, because sums are hourly."""
PARTS = (100, 80)
"""Percentages of a budget that are notified, the highest first."""

post = Notification.objects.post


@app.periodic(cron="* * * * *")
@app.task(name="watch", queueing_lock="watch")
def watch(timestamp: int) -> None:
    """Each minute: create the notifications that are due."""
    now = timezone.now()
    keys(now)
    budgets(now)
    engines(now)
    ledger(now)
    alerts.judge_all(now)
    Notification.objects.long_past().delete()


def keys(now: datetime) -> None:
    """Notify of keys that expire within a week."""
    soon = ApiKey.objects.with_text().filter(
        revoked_at=None, expires_at__gt=now, expires_at__lte=now + EXPIRES_SOON
    )
    for key in soon.select_related("tenant"):
        assert key.expires_at is not None
        data = {"key": key.name, "prefix": key.prefix, "expires_at": key.expires_at.isoformat()}
        once = f"{key.pk} {key.expires_at.isoformat()}"
        post(NotificationKind.KEY_EXPIRING, data, tenant=key.tenant, once=once)


def budgets(now: datetime) -> None:
    """Notify of budgets of which 80 or 100 % are used, for tenants, keys and adapters with recent
    usage."""
    lately = UsageSum.objects.filter(span=SumSpan.HOUR, start__gte=now - USED_LATELY)
    for tenant in Tenant.objects.filter(pk__in=lately.values("tenant")):
        _budgets(LimitScope(tenant), now)
    of_scope = Exists(lately.filter(key=OuterRef("key"))) | Exists(
        lately.filter(tenant=OuterRef("tenant"), adapter=OuterRef("adapter__name"))
    )
    has_budget = ~Q(**{kind.name: None for kind in KINDS.values() if kind.is_budget})
    sets = LimitSet.objects.filter(of_scope, has_budget).select_related("tenant", "key", "adapter")
    for scope in dict.fromkeys(LimitScope(one.tenant, one.key, one.adapter) for one in sets):
        _budgets(scope, now)


def _budgets(scope: LimitScope, now: datetime) -> None:
    in_force = ceilings.in_force(scope.sets())
    limits = {kind: in_force[kind.name] for kind in KINDS.values() if kind.is_budget}
    used = limit_usage.budgets(scope) if any(limits.values()) else {}
    for kind, limit in limits.items():
        if limit:
            _budget(scope, kind, used[kind.name], limit, now)


def _budget(scope: LimitScope, kind: LimitKind, used: int, limit: int, now: datetime) -> None:
    since = day_start(now) if kind.window == "day" else month_start(now)
    reached = next((part for part in PARTS if used * 100 >= limit * part), None)
    if reached is not None:
        data = {"budget": kind.name, "percent": reached, "used": used, "limit": limit}
        data |= _named(scope)
        once = f"{'' if scope.whole else scope.id} {kind.name} {since:%Y-%m-%d} {reached}".lstrip()
        post(NotificationKind.BUDGET_REACHED, data, tenant=scope.tenant, once=once)


def _named(scope: LimitScope) -> dict[str, str]:
    """The key or adapter of the scope; empty for a whole tenant."""
    if scope.key is not None:
        return {"key": scope.key.name, "prefix": scope.key.prefix}
    return {} if scope.adapter is None else {"adapter": scope.adapter.name}


def engines(now: datetime) -> None:
    """Notify of engines that were connected within the last day and are gone without having
    stopped."""
    lost = EngineCredential.objects.filter(
        revoked_at=None, stopped_at=None,
        last_seen_at__gt=now - FORGOTTEN_AFTER, last_seen_at__lt=now - LOST_AFTER,
    )  # fmt: skip
    for one in lost:
        assert one.last_seen_at is not None
        data = {"engine": one.name, "last_seen_at": one.last_seen_at.isoformat()}
        post(NotificationKind.ENGINE_LOST, data, once=f"{one.pk} {one.last_seen_at.isoformat()}")


def ledger(now: datetime) -> None:
    """Notify of engines' journals that the ledger differs from, once a day each."""
    for drift in drifts():
        if drift:
            data = {"engine": drift.journal.engine_id, "journal": drift.journal.journal,
                    "requests": drift.requests, "tokens": drift.tokens}  # fmt: skip
            post(
                NotificationKind.LEDGER_DRIFT, data, once=f"{drift.journal.journal} {now:%Y-%m-%d}"
            )
