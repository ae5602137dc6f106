"""Alert rules: when an alert is raised and resolved, and that it is told once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from inference.gateway.measuring.sums import BUCKETS, bucket_of
from tenants.errors import TooManyRules
from tenants.models import AlertRule, AuditEntry, Notification, Tenant, TotalMinute
from tenants.models.alerts import MAX_RULES
from tenants.notifications import mail
from tenants.notifications.alerts import judge_all
from tests.tenants.making import make_tenant
from tests.tenants.notifications.test_notifications import listen

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 11, 1, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def ended(
    tenant: Tenant | None, at: datetime, outcome: str, requests: int, ttft_s: float = 0.1
) -> None:
    """Requests that ended in that minute."""
    first = [0] * BUCKETS
    first[bucket_of(ttft_s)] = requests
    zero = dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "output_tokens", "cost", "decode_tokens", "decode_s"), 0
    )
    TotalMinute.objects.create(
        tenant=tenant, at=at.replace(second=0), outcome=outcome, code=outcome, limit_kind="",
        limit_scope="", requests=requests, first_tokens=first, totals=[0] * BUCKETS, **zero,
    )  # fmt: skip


def rule(tenant: Tenant, **fields: Any) -> AlertRule:
    usual = {"name": "errors", "metric": "error_share", "threshold": 5.0}
    return AlertRule.objects.add(tenant, None, **(usual | fields))


def told() -> list[str]:
    return list(Notification.objects.order_by("at", "pk").values_list("kind", flat=True))


def test_too_many_errors_are_told_once_and_their_end_once(tenant: Tenant) -> None:
    target = listen(tenant)
    made = rule(tenant)
    ended(tenant, NOON, "completed", 90)
    ended(tenant, NOON, "failed", 6)
    ended(tenant, NOON, "refused", 4)
    ended(make_tenant(), NOON, "completed", 1000)
    for second in (0, 1, 60, 120):
        judge_all(NOON + timedelta(seconds=second))
    assert told() == ["alert.raised"]
    data = Notification.objects.get().data
    assert (data["value"], data["requests"], data["rule"]) == (10.0, 100, "errors")
    assert target.deliveries.count() == 1
    made.refresh_from_db()
    assert made.raised_at == NOON
    judge_all(NOON + 6 * MINUTE)  # the window is empty, but not for long enough
    assert told() == ["alert.raised"]
    for minutes in (7, 8, 30):
        judge_all(NOON + minutes * MINUTE)
    assert sorted(told()) == ["alert.raised", "alert.resolved"]
    made.refresh_from_db()
    assert made.raised_at is None and not AuditEntry.objects.filter(action="changed").exists()


def test_a_figure_around_the_threshold_is_one_alert(tenant: Tenant) -> None:
    rule(tenant, minutes=1, min_requests=1)
    for minute in range(20):
        if minute % 4 == 0:
            ended(tenant, NOON + minute * MINUTE, "failed", 1)
        judge_all(NOON + minute * MINUTE)
    assert told() == ["alert.raised"]


def test_slow_first_tokens_raise_one_as_well(tenant: Tenant) -> None:
    rule(tenant, name="slow", metric="ttft_p95", threshold=2000.0)
    rule(tenant, name="slower", metric="ttft_p95", threshold=60_000.0)
    ended(tenant, NOON, "completed", 50, 0.1)
    ended(tenant, NOON - MINUTE, "completed", 50, 4.0)
    judge_all(NOON)
    (one,) = Notification.objects.all()
    assert one.data["rule"] == "slow" and one.data["value"] > 2000
    title, (line,) = mail.described(one)
    assert title == "Alert raised: slow" and line.endswith("100 requests in 5 min")


@pytest.mark.parametrize(("requests", "raised"), [(19, 0), (20, 1)])
def test_few_requests_raise_none(tenant: Tenant, requests: int, raised: int) -> None:
    rule(tenant)
    ended(tenant, NOON, "failed", requests)
    judge_all(NOON)
    assert Notification.objects.count() == raised


def test_older_requests_and_other_tenants_do_not_count(tenant: Tenant) -> None:
    rule(tenant)
    ended(tenant, NOON - 6 * MINUTE, "failed", 100)
    ended(make_tenant(), NOON, "failed", 100)
    ended(None, NOON, "failed", 100)
    judge_all(NOON)
    assert told() == []


def test_a_changed_rule_begins_anew(tenant: Tenant) -> None:
    made = rule(tenant)
    ended(tenant, NOON, "failed", 100)
    judge_all(NOON)
    made.refresh_from_db()
    made.change(threshold=50.0)
    made.refresh_from_db()
    assert made.raised_at is None
    judge_all(NOON + MINUTE)
    assert told() == ["alert.raised", "alert.raised"]
    changed = AuditEntry.objects.get(kind="alert rule", action="changed")
    assert changed.name == "errors" and (changed.after or {})["threshold"] == 50.0


def test_rules_are_bounded(tenant: Tenant) -> None:
    for number in range(MAX_RULES):
        rule(tenant, name=str(number))
    with pytest.raises(TooManyRules):
        rule(tenant)
    with pytest.raises(IntegrityError), transaction.atomic():
        AlertRule.objects.filter(name="1").update(minutes=61)
