"""Whether a tenant's malformed answers are asked for again (`inference.gateway.repairs`)."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from frontend.pages import tenant_page
from tenants.permissions import Caller, Permission

REPAIR_MESSAGES = {
    "once": "Malformed answers are asked for again, once.",
    "never": "Malformed answers are no longer asked for again.",
}


@require_POST
@tenant_page(Permission.EDIT_TENANT)
def choose(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Ask again, or no longer."""
    tenant = caller.tenant
    tenant.repair = "once" if request.POST.get("repair") == "once" else "never"
    tenant.save(update_fields=["repair"])
    messages.success(request, REPAIR_MESSAGES[tenant.repair])
    return redirect("adapters", tenant.slug)
