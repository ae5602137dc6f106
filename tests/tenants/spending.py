"""Requests in the ledger, as an engine's journal would have put them there."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

from django.db import connection
from django.db.models import F

from inference.interfaces.directory import TokenPrice
from inference.link.accounts import Usage
from tenants.billing.ledger import Connect, Ledger, connect
from tenants.models import ApiKey, UsageEvent, UsageRollup
from tenants.models.usage.sums import FIGURES, TOKENS

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
PRICE = TokenPrice(prompt=150_000, cached_prompt=75_000, output=600_000)
_numbers = itertools.count(1)


def spend(
    key: ApiKey, at: datetime = NOON, usage: Usage | None = None, **fields: Any
) -> UsageEvent:
    usage = usage or Usage(100, 40, 7, 2, 0.1, 0.2, 0.3, 0.9)
    counts = {
        name: getattr(usage, name)
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    }
    defaults = {
        "id": f"{next(_numbers):032x}",
        "adapter": "",
        "model": "base",
        "base_model": "base",
        "finish_reason": "stop",
        "engine_id": "e1",
    }
    names = defaults | fields
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenants_usage_partition(%s)", [at])
    event = UsageEvent.objects.create(
        started_at=at, tenant=key.tenant, key=key, journal="j1",
        prompt_price=PRICE.prompt, cached_prompt_price=PRICE.cached_prompt,
        output_price=PRICE.output, cost=PRICE.cost(usage),
        queue_s=usage.queue_s, load_s=usage.load_s, ttft_s=usage.ttft_s, total_s=usage.total_s,
        **(counts | names),
    )  # fmt: skip
    _add_up(event)
    return event


def patient_ledger(connect: Connect = connect, **options: Any) -> Ledger:
    """A ledger that gets enough time at its end to write what is left, even on a busy machine."""
    return Ledger(connect, **({"last_s": 60.0} | options))


def _add_up(event: UsageEvent) -> None:
    names = {name: getattr(event, name) for name in ("adapter", "model", "base_model")}
    hour = event.started_at.replace(minute=0, second=0, microsecond=0)
    rollup, _ = UsageRollup.objects.get_or_create(
        hour=hour, tenant=event.tenant, key=event.key, **names, defaults=dict.fromkeys(FIGURES, 0)
    )
    UsageRollup.objects.filter(pk=rollup.pk).update(
        requests=F("requests") + 1,
        **{name: F(name) + getattr(event, name) for name in (*TOKENS, "cost")},
    )
