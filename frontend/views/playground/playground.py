"""The playground's page; answers come over its socket (`frontend.playground`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db.models import OuterRef, Q, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from frontend.lists import id_in_url
from frontend.pages import tenant_page
from frontend.views.playground import prompts
from tenants.fleet.gateways import gateways
from tenants.models import LIVE, AdapterVersion, Alias, BaseModel, Conversation, Tenant
from tenants.models.adapters import State
from tenants.permissions import Caller, Permission

MAX_NAMES = 300
"""Maximum number of names of each kind that the page suggests; any other can be typed."""
MAX_PANES = 4

Names = list[tuple[str, str]]
"""Names of models, each with its badge."""


@require_GET
@tenant_page(Permission.USE_PLAYGROUND)
def playground(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The page, with at most MAX_PANES panes; each `?model=` sets the model of one."""
    return show(request, caller)


def show(
    request: HttpRequest,
    caller: Caller,
    kept: Conversation | None = None,
    *,
    read_only: bool = False,
    panes: list[dict[str, Any]] | None = None,
    notice: str = "",
) -> HttpResponse:
    """Render the playground, empty, with a saved conversation, or with these panes; `notice` says
    what they lack."""
    bases = list(
        BaseModel.objects.that_chat().order_by("name").values_list("name", flat=True)[:MAX_NAMES]
    )
    served = {engine["base_model"] for engine in gateways().fleet().engines}
    bases.sort(key=lambda name: name not in served)  # those that answer now come first
    adapters, aliases = _aliases(caller.tenant)
    asked = [name for name in request.GET.getlist("model") if name][:MAX_PANES]
    context: dict[str, Any] = {
        "models": _models(caller.tenant, bases, adapters, aliases),
        "model": next(iter(asked), ""),
        "asked": [{"model": name} for name in asked] if len(asked) > 1 else None,
        "base": next(iter(bases), ""),
        "adapter": next((name for name, _ in adapters), ""),
        "base_url": f"{settings.API_URL}/v1",
        "kept": kept,
        "panes": json.loads(kept.panes) if kept else panes,
        "notice": notice,
        "link": _link(request, caller, kept),
        "read_only": read_only,
        "is_own": kept is not None and kept.member.user == caller.user,
        "may_keep": caller.role is not None and not read_only,
        "prompts": [] if read_only else prompts.usable(caller),
        "sets": [] if read_only else prompts.usable_sets(caller),
        "set": id_in_url(request, "set"),
    }
    return render(request, "playground/playground.html", context)


def _link(request: HttpRequest, caller: Caller, kept: Conversation | None) -> str:
    """The link under which other members read the conversation, if it is shared."""
    if kept is None or kept.shared_as is None:
        return ""
    path = reverse("playground-shared", args=[caller.tenant.slug, kept.shared_as])
    return request.build_absolute_uri(path)


def _models(
    tenant: Tenant, bases: Sequence[str], adapters: Names, aliases: Names
) -> list[tuple[str, Names]]:
    """The names that can be chosen, in groups, each name with its badge."""
    groups = {
        "Base models": [(name, "base") for name in bases],
        "Adapters": adapters,
        "Aliases": aliases,
        "Versions": _versions(tenant),
    }
    return [(title, names) for title, names in groups.items() if names]


def _aliases(tenant: Tenant) -> tuple[Names, Names]:
    """Adapters with a live version, by their names alone, and the other aliases of adapters; those
    that chat, last changed first."""
    found = Alias.objects.filter(adapter__tenant=tenant)
    found = found.filter(adapter__base_model__in=BaseModel.objects.that_chat())
    found = found.annotate(is_live=Q(name=LIVE)).order_by("-is_live", "-changed_at")
    named = found.values_list("adapter__name", "name", "version__number")[: 2 * MAX_NAMES]
    adapters, aliases = [], []
    for adapter, name, number in named:
        if name == LIVE:
            adapters.append((adapter, f"@{number} live"))
        else:
            aliases.append((f"{adapter}@{name}", f"@{number}"))
    return adapters, aliases


def _versions(tenant: Tenant) -> Names:
    """Versions that are ready, newest first, each with its badge."""
    live = Alias.objects.filter(adapter=OuterRef("adapter"), name=LIVE)
    ready = AdapterVersion.objects.filter(adapter__tenant=tenant, state=State.READY)
    ready = ready.filter(adapter__base_model__in=BaseModel.objects.that_chat())
    ready = ready.annotate(live=Subquery(live.values("version__number"))).order_by("-created_at")
    found = ready.values_list("adapter__name", "number", "live")[:MAX_NAMES]
    return [(f"{name}@{number}", _badge(number, live)) for name, number, live in found]


def _badge(number: int, live: int | None) -> str:
    if number == live:
        return f"@{number} live"
    return f"@{number} candidate" if live is not None and number > live else f"@{number}"
