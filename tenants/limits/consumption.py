"""How much of a scope's limits is used at present, for pages.

What a minute and concurrent streams count is known to the gateways; days and months are the
ledger's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Q
from django.utils import timezone

from inference.grants import MICRO, Limits
from tenants.billing.months import month_start
from tenants.fleet.gateways import gateways
from tenants.models import LimitScope, UsageSum


def budgets(scope: LimitScope) -> dict[str, int]:
    """What a tenant, key or adapter used of this UTC day and month, by field: tokens, and costs
    in micro-units of the currency, rounded up."""
    now = timezone.now()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    usage = UsageSum.objects.filter(tenant=scope.tenant)
    if scope.key is not None:
        origin = scope.key.counted_as
        usage = usage.filter(Q(key=origin) | Q(key__origin=origin))
    if scope.adapter is not None:
        usage = usage.filter(adapter=scope.adapter.name)
    days = list(usage.sums(["day"], month_start(now), now))
    return _summed("day", [row for row in days if row["day"] == today]) | _summed("month", days)


def _summed(period: str, days: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    tokens = cost = 0
    for row in days:
        tokens += row["prompt_tokens"] + row["completion_tokens"]
        cost += int(row["cost"])
    return {f"tokens_per_{period}": tokens, f"cost_per_{period}": -(-cost // MICRO)}


def used(scope: LimitScope, limits: Limits | None) -> Mapping[str, int]:
    """Both; `limits` are those in force at the scope."""
    now = gateways().used(limits) if limits is not None else {}
    return {**now, **budgets(scope)}
