"""How much of a scope's limits is used at present, for pages and sockets.

Sliding windows and concurrent streams are counted by the limiter, which the gateway's wiring sets
here; budgets are summed from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from asgiref.sync import async_to_sync
from django.db.models import Q
from django.utils import timezone

from inference.errors import Unavailable
from inference.grants import MICRO, Limits
from tenants.limits.kinds import KINDS, Kinds
from tenants.models import LimitScope, UsageSum
from tenants.models.usage import month_start


class Counters(Protocol):
    """The part of `limiter.StoreLimiter` that is needed."""

    async def used(self, limits: Limits) -> Mapping[str, int]: ...


counters: Counters | None = None
"""The limiter of this gateway; None in processes that have none."""


async def minute(limits: Limits) -> Mapping[str, int]:
    """What counts against the limits that are set, but for budgets, by the name of their kind;
    empty where nobody can say."""
    if counters is None:
        return {}
    try:
        return await counters.used(limits)
    except Unavailable:
        return {}


def budgets(scope: LimitScope, kinds: Kinds = KINDS) -> dict[str, int]:
    """What a tenant, key or adapter used of this UTC day and month, by kind of budget: tokens, and
    costs in micro-units of the currency, rounded up."""
    now = timezone.now()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    usage = UsageSum.objects.filter(tenant=scope.tenant)
    if scope.key is not None:
        origin = scope.key.counted_as
        usage = usage.filter(Q(key=origin) | Q(key__origin=origin))
    if scope.adapter is not None:
        usage = usage.filter(adapter=scope.adapter.name)
    days = list(usage.sums(["day"], month_start(now), now))
    used = {"day": _summed(row for row in days if row["day"] == today), "month": _summed(days)}
    return {kind.name: used[kind.window][kind.measure] for kind in kinds.values() if kind.is_budget}


def _summed(days: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    tokens = cost = 0
    for row in days:
        tokens += row["prompt_tokens"] + row["completion_tokens"]
        cost += int(row["cost"])
    return {"tokens": tokens, "cost": -(-cost // MICRO)}


def used(scope: LimitScope, limits: Limits | None) -> Mapping[str, int]:
    """Both, from code that is not asynchronous; `limits` are those in force at the scope."""
    now = async_to_sync(minute)(limits) if limits is not None else {}
    return {**now, **budgets(scope)}
