"""How much of a scope's limits is used at present, for pages.

Sliding windows and concurrent streams are counted by the gateways; budgets are summed from the
ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Q
from django.utils import timezone

from inference.interfaces.directory import MICRO, Limits
from tenants.fleet.gateways import gateways
from tenants.limits.kinds import KINDS, TRAINED, Kinds
from tenants.models import LimitScope, UsageSum
from tenants.models.training_limits import limits_of
from tenants.models.tuning import training_rooms
from tenants.utc import day_start, month_start


def budgets(scope: LimitScope, kinds: Kinds = KINDS) -> dict[str, int]:
    """What a tenant, key or adapter has used in this UTC day and month, by kind of budget: tokens,
    and costs in micro-units of the currency, rounded up."""
    now = timezone.now()
    today = day_start(now)
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
    """What is used of limits and of budgets, by kind; `limits` are those in force at the scope."""
    now = gateways().used(limits) if limits is not None else {}
    return {**now, **budgets(scope), **_trained(scope)}


def _trained(scope: LimitScope) -> Mapping[str, int]:
    """What a whole tenant with a limit of trained tokens has trained."""
    if not scope.whole or scope.tenant is None:
        return {}
    room = training_rooms(limits_of([scope.tenant.pk])).get(scope.tenant.pk)
    return {} if room is None else {TRAINED.name: room.trained}
