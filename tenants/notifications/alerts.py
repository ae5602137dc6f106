"""Judges alert rules once a minute, from the figures of requests by minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from inference.gateway.measuring.sums import percentile_s
from tenants.models import AlertRule, Notification, TotalMinute
from tenants.models.alerts import MAX_MINUTES, AlertEvent, Metric
from tenants.models.notifications import NotificationKind

MINUTE = timedelta(minutes=1)
KINDS: Mapping[AlertEvent, NotificationKind] = {
    AlertEvent.RAISED: NotificationKind.ALERT_RAISED,
    AlertEvent.RESOLVED: NotificationKind.ALERT_RESOLVED,
}


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """The requests of a window: how many, and the values that rules may watch (None without
    requests)."""

    requests: int = 0
    error_share: float | None = None
    ttft_p95: float | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> WindowFigures:
        """From a row of `figures`."""
        requests: int = row["requests"]
        first = percentile_s(row["first_tokens"], 0.95)
        wrong = 100 * (row["refused"] + row["failed"]) / requests if requests else None
        return cls(requests, wrong, None if first is None else first * 1000)

    def value_for(self, rule: AlertRule) -> float | None:
        """What the rule watches; None if there are too few requests to judge."""
        if self.requests < rule.min_requests:
            return None
        return self.error_share if rule.metric == Metric.ERROR_SHARE else self.ttft_p95


def judge_all(now: datetime) -> None:
    """Raise and resolve alerts. Rules of tenants without requests are not looked at, unless they
    are raised."""
    lately = TotalMinute.objects.filter(
        tenant=OuterRef("tenant"), at__gte=now - (MAX_MINUTES + 1) * MINUTE
    )
    known: dict[tuple[int, int], WindowFigures] = {}
    for rule in AlertRule.objects.filter(Q(raised_at__isnull=False) | Exists(lately)):
        window = (rule.tenant_id, rule.minutes)
        if window not in known:
            known[window] = figures(*window, now)
        _judge(rule, known[window], now)


def figures(tenant_id: int, minutes: int, now: datetime) -> WindowFigures:
    """The figures of the last `minutes` whole minutes, and of the one that has begun."""
    this = now.replace(second=0, microsecond=0)
    found = TotalMinute.objects.filter(tenant=tenant_id)
    rows = found.between(this - minutes * MINUTE, this + MINUTE).figures(times=["first_tokens"])
    return next(map(WindowFigures.of, rows), WindowFigures())


def _judge(rule: AlertRule, found: WindowFigures, now: datetime) -> None:
    with transaction.atomic():
        locked = AlertRule.objects.select_for_update().filter(pk=rule.pk).first()
        if locked is None or (locked.minutes, locked.metric) != (rule.minutes, rule.metric):
            return  # deleted or changed meanwhile: judged in the next minute
        raised_at, value = locked.raised_at, found.value_for(locked)
        event = locked.judge(value, now)
        if event is None and locked.raised_at is None:
            return
        locked.save(update_fields=["raised_at", "exceeded_at"])
        if event is not None:
            since = raised_at or now
            once = f"{locked.pk} {since.isoformat()}"
            data = {
                "rule": locked.name, "metric": locked.metric, "threshold": locked.threshold,
                "minutes": locked.minutes, "requests": found.requests,
                "value": None if value is None else round(value, 2),
                "raised_at": since.isoformat(),
            }  # fmt: skip
            Notification.objects.post(KINDS[event], data, tenant=locked.tenant, once=once)
