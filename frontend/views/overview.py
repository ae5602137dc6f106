"""A tenant's first page: what it used, and what is still to be done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from frontend.pages import tenant_page
from tenants.api import engines
from tenants.models import LIVE, Alias, ApiKey, BaseModel, Tenant, UsageRollup
from tenants.permissions import Caller, Permission

EXPIRES_SOON = timedelta(days=14)
SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the first-run checklist."""

    title: str
    done: bool
    text: str
    page: str = ""
    action: str = ""


@tenant_page(Permission.READ_TENANT)
def overview(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Spend and usage of the last day and of this month; the checklist until it is done."""
    now = timezone.now()
    tenant = caller.tenant
    context: dict[str, Any] = {"steps": steps(tenant), "currency": settings.CURRENCY.upper()}
    if caller.may(Permission.READ_USAGE):
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        context["day"] = used(tenant, now - timedelta(days=1))
        context["month"] = used(tenant, month)
    if caller.may(Permission.READ_KEYS):
        live = ApiKey.objects.filter(tenant=tenant, revoked_at=None)
        context["expiring"] = list(
            live.filter(expires_at__gt=now, expires_at__lt=now + EXPIRES_SOON)[:5]
        )
    context["done"] = all(step.done for step in context["steps"])
    context["model"] = _model_of(tenant)
    context["base_url"] = request.build_absolute_uri("/v1")
    return render(request, "overview.html", context)


def used(tenant: Tenant, since: datetime) -> dict[str, Any]:
    """Sums of the tenant's hours since then; the cost in pico-units."""
    start = since.replace(minute=0, second=0, microsecond=0)
    rollups = UsageRollup.objects.filter(tenant=tenant).between(start, timezone.now())
    return next(iter(rollups.sums([])), None) or dict.fromkeys(SUMS, 0)


def steps(tenant: Tenant) -> list[Step]:
    """What a new tenant does, in order; each turns green by itself."""
    keys = tenant.keys.with_text().filter(revoked_at=None, scopes__contains=["inference"])
    return [
        Step(
            "An engine is connected",
            bool(engines.snapshot_source()),
            "Engines serve the base model. The operator of this installation starts them.",
        ),
        Step(
            "An adapter is live",
            Alias.objects.filter(adapter__tenant=tenant, name=LIVE).exists(),
            "Upload what PEFT's save_pretrained wrote. It is checked and tried before it serves.",
        ),
        Step(
            "There is an API key",
            keys.exists(),
            "Programs show it to call your models. Its text is shown once.",
            "keys",
            "Create a key",
        ),
        Step(
            "The first request was answered",
            UsageRollup.objects.filter(tenant=tenant).exists(),
            "Send one with the snippet below.",
        ),
    ]


def _model_of(tenant: Tenant) -> str:
    """A model that the tenant can call, for the snippet."""
    live = Alias.objects.filter(adapter__tenant=tenant, name=LIVE).select_related("adapter").first()
    if live is not None:
        return live.adapter.name
    base = BaseModel.objects.first()
    return base.name if base else "your-model"
