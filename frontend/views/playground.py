"""The playground's page; what it shows comes over its socket (`frontend.playground`)."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from frontend.pages import tenant_page
from tenants.models import LIVE, AdapterVersion, Alias, BaseModel, Tenant
from tenants.models.adapters import State
from tenants.permissions import Caller, Permission

MAX_NAMES = 300
"""Names that the page suggests of each kind; any other can be typed."""


@require_GET
@tenant_page(Permission.USE_PLAYGROUND)
def playground(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Panes beside each other; `?model=` says what the first one asks."""
    bases = list(BaseModel.objects.order_by("name").values_list("name", flat=True)[:MAX_NAMES])
    adapters = _adapters(caller.tenant)
    names = [*adapters, *bases, *_versions(caller.tenant)]
    context: dict[str, Any] = {
        "names": names,
        "model": request.GET.get("model") or next(iter(names), ""),
        "other": next(iter(bases), ""),
        "base_url": request.build_absolute_uri("/v1"),
        "currency": settings.CURRENCY.upper(),
    }
    return render(request, "playground.html", context)


def _adapters(tenant: Tenant) -> list[str]:
    """Adapters with a live version, the last promoted first."""
    live = Alias.objects.filter(adapter__tenant=tenant, name=LIVE).order_by("-changed_at")
    return list(live.values_list("adapter__name", flat=True)[:MAX_NAMES])


def _versions(tenant: Tenant) -> list[str]:
    """Single versions that can serve, the newest first."""
    ready = AdapterVersion.objects.filter(adapter__tenant=tenant, state=State.READY)
    found = ready.order_by("-id").values_list("adapter__name", "number")[:MAX_NAMES]
    return [f"{name}@{number}" for name, number in found]
