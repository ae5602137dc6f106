"""A tenant's start page: health, traffic, what needs attention, budgets, and first steps that are
left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Case, Count, Exists, OuterRef, Subquery, When, Window
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from frontend.formats import utc
from frontend.pages import tenant_page
from frontend.periods import PERIODS, USUAL, pace_of_month
from frontend.views.keys import expiring_keys
from frontend.views.limits import shown, used_of
from frontend.views.overview import attention, health
from frontend.views.overview.attention import Rejections
from frontend.views.overview.traffic import busiest, chart_of
from frontend.views.requests.failures import MOST, EndedRequests
from inference.interfaces.directory import MICRO
from tenants.fleet.gateways import gateways
from tenants.limits import ceilings
from tenants.limits.kinds import KINDS, LimitKind
from tenants.models import (
    LIVE,
    Alias,
    ApiKey,
    BaseModel,
    LimitScope,
    Tenant,
    UsageSum,
)
from tenants.permissions import Caller, Permission
from tenants.utc import DAY, day_start, month_end, month_start

BUDGETS = sorted(
    (kind for kind in KINDS.values() if kind.is_budget), key=lambda kind: not kind.is_money
)
"""Budgets in the order in which they are shown: money first."""

LAST_DAY, THIS_MONTH = "the last 24 hours", "the month so far"

Sums = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FirstStep:
    """One line of the first-run checklist."""

    title: str
    done: bool
    text: str
    page: str = ""
    action: str = ""
    needs: Permission | None = None
    """The permission that the action requires."""


@dataclass(frozen=True, slots=True)
class BudgetCard:
    """A daily or monthly limit of the tenant; `outlook` says when it will be used up."""

    label: str
    used: int
    limit: int
    text: str
    outlook: str


@tenant_page(Permission.READ_TENANT)
def overview(request: HttpRequest, caller: Caller) -> HttpResponse:
    """What the caller may see of health, budgets and failed requests; the checklist until it is
    done; how to send a request."""
    now = timezone.now()
    found = progress(caller.tenant)
    used = UsedCard.since_month_began(caller, now)
    context: dict[str, Any] = {
        "steps": steps(found, caller),
        "drawn_at": now,
        "day": used.day,
        "month": used.month,
        "own": not caller.sees_all_sums,
        "may_create": caller.may(Permission.EDIT_OWN_KEYS),
        "may_try": caller.may(Permission.USE_PLAYGROUND),
        "may_limit": caller.may(Permission.EDIT_LIMITS),
        "model": found.live_adapter or found.base_model or "your-model",
        "base_url": f"{settings.API_URL}/v1",
    }
    context["done"] = all(step.done for step in context["steps"])
    strip = health.of_tenant(caller, health.chosen(request), now)
    context |= strip
    context["periods"] = PERIODS.values()
    if strip["sums"].requests:
        context |= chart_of(request.GET.get("show", ""), strip["compared"])
        context["adapters"] = busiest(caller, strip["compared"].window)
    if caller.sees_all_sums:
        context["budgets"] = budgets(caller.tenant, used, now)
    ended = None
    if caller.may(Permission.READ_USAGE):
        ended = EndedRequests.lately(caller.tenant, strip["period"], now)
        context["failures"] = ended.reasons[:MOST]
        context["failures_in"] = f"period={strip['period'].name}"
    expiring = expiring_keys(caller, now).annotate(count=Window(Count("pk")))
    may_rotate, may_upload = (
        caller.may(one) for one in (Permission.EDIT_OWN_KEYS, Permission.EDIT_ADAPTERS)
    )
    context["attention"] = attention.items(
        caller.tenant,
        ended,
        strip,
        budgets=context.get("budgets", ()),
        expiring=expiring.first() if may_rotate else None,
        rejected=Rejections(found.rejected_count or 0, found.rejected if may_upload else None),
    )
    context["too_few"] = attention.is_large(strip["sums"])
    return render(request, "overview/overview.html", context)


@dataclass(frozen=True, slots=True)
class UsedCard:
    """Sums of the last 24 hours, the current UTC day and the current month."""

    day: Sums
    today: Sums
    month: Sums

    @classmethod
    def since_month_began(cls, caller: Caller, now: datetime) -> UsedCard:
        """The sums of the usage that the caller may see."""
        starts = USUAL.start(now), day_start(now), month_start(now)
        return cls(*caller.usage().sums_since(starts, now))


def budgets(tenant: Tenant, used: UsedCard, now: datetime) -> list[BudgetCard]:
    """The tenant's budgets in force, and how long each will last."""
    in_force = ceilings.in_force(LimitScope(tenant).sets())
    found = []
    for kind in BUDGETS:
        if (limit := in_force[kind.name]) is None:
            continue
        if kind.window == "day":
            amount, renews, since = _amount(used.today, kind), day_start(now) + DAY, LAST_DAY
            pace = _amount(used.day, kind) / (now - USUAL.start(now)).total_seconds()
        else:
            amount, renews, since = _amount(used.month, kind), month_end(now), THIS_MONTH
            pace = pace_of_month(amount, now)
        text = f"{used_of(kind, amount)} of {shown(kind, limit)}"
        until = outlook(limit - amount, pace, now, renews, since)
        found.append(BudgetCard(kind.label, amount, limit, text, until))
    return found


def _amount(sums: Sums, kind: LimitKind) -> int:
    """Tokens, or the cost in micro-units, rounded up."""
    if kind.is_money:
        return -(-int(sums["cost"]) // MICRO)
    return int(sums["prompt_tokens"] + sums["completion_tokens"])


def outlook(left: int, per_s: float, now: datetime, renews: datetime, since: str) -> str:
    """When the rest will be used up at this rate, which is that of the time `since`."""
    if left <= 0:
        return f"Used up: requests are refused until {utc(renews)}."
    if not per_s:
        return f"No usage in {since}."
    lasts_s = left / per_s
    if lasts_s >= (renews - now).total_seconds():
        return f"Lasts until it renews, at the rate of {since}."
    end = now + timedelta(seconds=lasts_s)
    return f"Runs out on {utc(end)} at the rate of {since}."


def progress(tenant: Tenant) -> Any:
    """The tenant, annotated for the checklist and the snippets, in one query. The snippets name
    something that an engine serves now, if there is such."""
    served = [engine.get("base_model", "") for engine in gateways().fleet().engines]
    live = Alias.objects.filter(adapter__tenant=OuterRef("pk"), name=LIVE)
    live = live.filter(adapter__base_model__in=BaseModel.objects.that_chat())
    keys = ApiKey.objects.with_text().filter(
        tenant=OuterRef("pk"), revoked_at=None, scopes__contains=["inference"]
    )
    rejected = Rejections.of_tenants()
    return Tenant.objects.annotate(
        live_adapter=Subquery(
            live.order_by(_first(adapter__base_model__name__in=served), "adapter__name").values(
                "adapter__name"
            )[:1]
        ),
        base_model=Subquery(
            BaseModel.objects.that_chat()
            .order_by(_first(name__in=served), "name")
            .values("name")[:1]
        ),
        has_key=Exists(keys),
        rejected=Subquery(rejected["last"]),
        rejected_count=Subquery(rejected["count"]),
        has_usage=Exists(UsageSum.objects.filter(tenant=OuterRef("pk"))),
    ).get(pk=tenant.pk)


def _first(**which: Any) -> Case:
    """An order in which these come before the others."""
    return Case(When(**which, then=0), default=1)


def steps(found: Any, caller: Caller) -> list[FirstStep]:
    """The first steps of a new tenant, in order, each with its action if the caller may do it.
    Steps are marked as done automatically."""
    return [
        step if step.needs is None or caller.may(step.needs) else replace(step, page="")
        for step in _steps(found)
    ]


def _steps(found: Any) -> list[FirstStep]:
    return [
        FirstStep(
            "Engine connected",
            bool(gateways().fleet().engines),
            "Engines serve the base model. The operator of this installation starts them.",
        ),
        FirstStep(
            "Adapter live",
            found.live_adapter is not None,
            "Upload the files that PEFT's save_pretrained wrote. They are checked first.",
            "adapters",
            "Upload adapter",
            Permission.EDIT_ADAPTERS,
        ),
        FirstStep(
            "API key created",
            found.has_key,
            "Apps need one to call your models. It is shown only once.",
            "keys",
            "Create key",
            Permission.EDIT_OWN_KEYS,
        ),
        FirstStep(
            "First request answered",
            found.has_usage,
            "Send one with your API key.",
        ),
    ]
