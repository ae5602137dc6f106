"""The playground's page; answers come over its socket (`frontend.playground`)."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from frontend.pages import tenant_page
from tenants.models import LIVE, AdapterVersion, Alias, BaseModel, Conversation, Tenant
from tenants.models.adapters import State
from tenants.permissions import Caller, Permission

MAX_NAMES = 300
"""Most names of each kind that the page suggests; any other can be typed."""


@require_GET
@tenant_page(Permission.USE_PLAYGROUND)
def playground(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Most panes side by side; `?model=` sets the model of the first one."""
    return show(request, caller)


def show(
    request: HttpRequest,
    caller: Caller,
    kept: Conversation | None = None,
    *,
    read_only: bool = False,
) -> HttpResponse:
    """Render the playground, empty or with a conversation."""
    chatting = BaseModel.objects.that_chat().order_by("name")
    bases = list(chatting.values_list("name", flat=True)[:MAX_NAMES])
    adapters = _adapters(caller.tenant)
    names = [*adapters, *bases, *_versions(caller.tenant)]
    context: dict[str, Any] = {
        "names": names,
        "model": request.GET.get("model") or next(iter(names), ""),
        "other": next(iter(bases), ""),
        "base_url": f"{settings.API_URL}/v1",
        "kept": kept,
        "panes": json.loads(kept.panes) if kept else None,
        "link": _link(request, caller, kept),
        "read_only": read_only,
        "is_own": kept is not None and kept.member.user == caller.user,
        "may_keep": caller.role is not None and not read_only,
    }
    return render(request, "playground.html", context)


def _link(request: HttpRequest, caller: Caller, kept: Conversation | None) -> str:
    """The link under which other members read the conversation, if it is shared."""
    if kept is None or kept.shared_as is None:
        return ""
    path = reverse("playground-shared", args=[caller.tenant.slug, kept.shared_as])
    return request.build_absolute_uri(path)


def _adapters(tenant: Tenant) -> list[str]:
    """Adapters with a live version, last promoted first."""
    live = Alias.objects.filter(adapter__tenant=tenant, name=LIVE)
    live = live.filter(adapter__base_model__in=BaseModel.objects.that_chat())
    live = live.order_by("-changed_at")
    return list(live.values_list("adapter__name", flat=True)[:MAX_NAMES])


def _versions(tenant: Tenant) -> list[str]:
    """Versions that are ready, newest first."""
    ready = AdapterVersion.objects.filter(adapter__tenant=tenant, state=State.READY)
    ready = ready.filter(adapter__base_model__in=BaseModel.objects.that_chat())
    found = ready.order_by("-id").values_list("adapter__name", "number")[:MAX_NAMES]
    return [f"{name}@{number}" for name, number in found]
