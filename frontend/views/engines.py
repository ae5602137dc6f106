"""Whether a tenant's models are being served; reveals nothing about other tenants."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from frontend.pages import tenant_page
from tenants.api.endpoints.fleet import engines as connected
from tenants.fleet.gateways import gateways
from tenants.models import BaseModel, Tenant
from tenants.permissions import Caller, Permission


@require_GET
@tenant_page(Permission.READ_ADAPTERS)
def engines(request: HttpRequest, caller: Caller) -> HttpResponse:
    return render(request, "engines/engines.html", state(caller.tenant))


def state(tenant: Tenant) -> dict[str, Any]:
    """The engines of each base model, and which of the tenant's adapters are loaded on them."""
    found = [connected.shown_to({tenant.slug}, engine) for engine in gateways().fleet().engines]
    rows = [
        (
            engine,
            datetime.fromisoformat(engine["connected_at"]),
            [name.partition("/")[2].partition("@")[::2] for name in engine["resident_adapters"]],
        )
        for engine in sorted(found, key=lambda engine: str(engine["id"]))
    ]
    served = {engine["base_model"] for engine in found if not engine["draining"]}
    used = BaseModel.objects.filter(Exists(tenant.adapters.filter(base_model=OuterRef("pk"))))
    missing = [name for name in used.values_list("name", flat=True) if name not in served]
    return {"rows": rows, "missing": missing}
