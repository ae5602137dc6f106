"""The crowd's other rows: saved prompts, prompt sets with votes, webhooks with a month of
deliveries, stored prompts and answers, and attempts of requests that moved.

Nothing is sent to these webhooks, because each has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection, models

from demo.crowd import Size
from tenants.models import ContentKey, Membership, PromptSet, SavedPrompt, SetRun, Target, Tenant
from tenants.models.notifications import MAX_TARGETS, OF_INSTALLATION, OF_TENANTS

PROMPTS, SETS, RUNS = 4, 2, 10
"""Prompts and sets of each of the big tenant's members, and runs of each set."""
WEBHOOKS_EVERY = 10
"""One of this many tenants has a webhook; the big one has as many as allowed."""
NOTIFICATIONS = 100
"""Notifications of each tenant with a webhook, and of the installation."""
STORED_DAYS = 30
MOVED_EVERY = 500
"""One of this many requests ran on two engines."""
TEXT = "How may {{customer}} return what was ordered last week? " * 18

_NOTIFIED = """
INSERT INTO tenants_notification (tenant_id, kind, data, once, at, mailed)
SELECT tenant_id, kinds[1 + n %% cardinality(kinds)], '{"name": "crowd"}', '',
       %(until)s::timestamptz - (n + 0.5) * interval '30 days' / %(notifications)s, true
FROM (SELECT DISTINCT ON (tenant_id) tenant_id, kinds FROM tenants_target
      ORDER BY tenant_id) AS notified,
     generate_series(0, %(notifications)s - 1) AS n
ORDER BY n DESC
"""
_DELIVERED = """
INSERT INTO tenants_delivery (notification_id, target_id, state, attempts, due_at, tried_at, status)
SELECT notification.id, target.id,
       CASE WHEN target.id %% 7 = 0 THEN 'failed' ELSE 'delivered' END, 1,
       notification.at, notification.at, CASE WHEN target.id %% 7 = 0 THEN 503 ELSE 204 END
FROM tenants_notification AS notification
JOIN tenants_target AS target ON target.tenant_id IS NOT DISTINCT FROM notification.tenant_id
ORDER BY notification.at
"""
_STORED = """
INSERT INTO tenants_storedcontent (tenant_id, kind, name, content_key_id, at, expires_at, data)
SELECT tenant_id, 'request', id, %(key)s, started_at, started_at + interval '30 days' + '1 day',
       decode(repeat(md5(id), 40), 'hex')
FROM tenants_usageevent WHERE tenant_id = %(tenant)s AND started_at >= %(since)s
"""
_MOVED = """
INSERT INTO tenants_supersededattempt (
    request_id, started_at, attempt, engine_id, journal, prompt_tokens, cached_tokens,
    completion_tokens, reasoning_tokens, inherited_tokens, finish_reason, ttft_s, total_s)
SELECT id, started_at, 1, engine_id, journal, prompt_tokens, cached_tokens, 3, 0, 0, 'engine_lost',
       ttft_s, ttft_s + 0.1
FROM tenants_usageevent WHERE started_at >= %(since)s AND abs(hashtext(id)::bigint) %% %(every)s = 0
"""


def make(size: Size, tenants: Sequence[Tenant]) -> None:
    """Make these rows for the tenants, the big one first. Call it inside a transaction."""
    big = tenants[0]
    members = list(Membership.objects.filter(tenant=big).order_by("pk"))
    _prompts(size, members)
    _webhooks(size, tenants)
    big.content_days = STORED_DAYS
    big.save(update_fields=["content_days"])
    key = ContentKey.objects.create(tenant=big, wrapped=b"crowd")
    values: dict[str, Any] = {
        "until": size.until, "notifications": NOTIFICATIONS, "key": key.pk, "tenant": big.pk,
        "every": MOVED_EVERY, "since": size.until - timedelta(days=STORED_DAYS),
    }  # fmt: skip
    with connection.cursor() as cursor:
        for statement in (_NOTIFIED, _DELIVERED, _STORED, _MOVED):
            cursor.execute(statement, values)


def _prompts(size: Size, members: Sequence[Membership]) -> None:
    """Make shared prompts, so that each member's playground has those of all members."""
    _write(
        SavedPrompt(member=member, name=f"Prompt {number}", text=TEXT, system=TEXT, shared=True)
        for member in members
        for number in range(PROMPTS)
    )
    sets = [
        PromptSet(member=member, name=f"Set {number}", prompts=[TEXT] * 20, shared=True)
        for member in members
        for number in range(SETS)
    ]
    _write(sets)
    _write(
        SetRun(
            prompt_set=one,
            member=one.member,
            key=UUID(int=one.pk * RUNS + number),
            compared=["support-0000@1", f"support-0000@{2 + number % 2}"],
            choices=["A", "B", "B", "tie"] * 5,
            at=size.until - timedelta(days=number),
        )
        for one in sets
        for number in range(RUNS)
    )


def _webhooks(size: Size, tenants: Sequence[Tenant]) -> None:
    of_tenants, of_all = [str(one) for one in OF_TENANTS], [str(one) for one in OF_INSTALLATION]
    _write(
        Target(
            tenant=tenant,
            url=f"https://{number}.example/hooks",
            kinds=kinds,
            ended_at=size.until,
        )
        for tenant, kinds in ((tenants[0], of_tenants), (None, of_all))
        for number in range(MAX_TARGETS)
    )
    _write(
        Target(
            tenant=tenant,
            url="https://hooks.example/lorikeet",
            kinds=of_tenants,
            ended_at=size.until,
        )
        for tenant in tenants[WEBHOOKS_EVERY::WEBHOOKS_EVERY]
    )


def _write(rows: Iterable[models.Model]) -> None:
    made = list(rows)
    if made:
        type(made[0])._default_manager.bulk_create(made, batch_size=1_000)
