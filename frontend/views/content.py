"""Whether a tenant's prompts and answers are stored, their destruction, and whether prompts may
leave the installation."""

from __future__ import annotations

from typing import Any

import jwt
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from frontend.formats import number
from frontend.pages import refusals_as_messages, tenant_page
from tenants.content import retention
from tenants.models import StoredContent, User
from tenants.models.content import MAX_COUNTED
from tenants.naming import REQUEST, RESPONSE
from tenants.permissions import Caller, Permission

PERIODS = {
    0: "Store nothing",
    1: "Store for a day",
    7: "Store for 7 days",
    14: "Store for 14 days",
    30: "Store for 30 days",
}


class ContentForm(forms.Form):
    """How long prompts and answers are stored."""

    days = forms.TypedChoiceField(
        choices=list(PERIODS.items()), coerce=int, label="Prompts and answers"
    )


@require_http_methods(["GET", "POST"])
@tenant_page(Permission.READ_TENANT)
def content(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The page; POST sets how long they are stored."""
    form = ContentForm(request.POST or None, initial={"days": caller.tenant.content_days})
    if request.method == "POST":
        caller.require(Permission.EDIT_CONTENT)
        if form.is_valid():
            with refusals_as_messages(request):
                retention.keep_for(caller.tenant, form.cleaned_data["days"])
                messages.success(request, "Saved. It applies within a second.")
            return redirect("content", caller.tenant.slug)
    context: dict[str, Any] = {
        "form": form,
        "days": caller.tenant.content_days,
        "possible": retention.is_possible(),
        "key": retention.live_key(caller.tenant),
        "requests": _stored(caller, REQUEST),
        "responses": _stored(caller, RESPONSE),
        "may_edit": caller.may(Permission.EDIT_CONTENT),
        "may_destroy": caller.may(Permission.DESTROY_CONTENT),
        "destroyed": caller.tenant.content_keys.filter(destroyed_at__isnull=False),
    }
    return render(request, "content.html", context, status=422 if form.errors else 200)


def _stored(caller: Caller, kind: str) -> str:
    """How many of a kind there are, up to MAX_COUNTED."""
    count = StoredContent.objects.live().counted(caller.tenant, kind)
    return number(count) if count < MAX_COUNTED else f"{number(MAX_COUNTED)} or more"


@require_POST
@tenant_page(Permission.DESTROY_CONTENT)
def destroy(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Destroy the encryption key, after which nobody can read what was stored."""
    assert isinstance(caller.user, User)
    with refusals_as_messages(request):
        retention.destroy(caller.tenant, caller.user)
        messages.success(
            request,
            "Encryption key destroyed. The stored prompts and answers can no longer be read.",
        )
    return redirect("content", caller.tenant.slug)


OVERFLOW_MESSAGES = {
    True: "Allowed. It applies within a second.",
    False: "No longer allowed. It applies within a second.",
}


@require_POST
@tenant_page(Permission.EDIT_CONTENT)
def overflow(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Allow that prompts leave the installation, or no longer."""
    tenant = caller.tenant
    tenant.overflow = request.POST.get("overflow") == "allowed"
    tenant.save(update_fields=["overflow"])
    messages.success(request, OVERFLOW_MESSAGES[tenant.overflow])
    return redirect("content", tenant.slug)


@require_GET
@tenant_page(Permission.READ_TENANT)
def confirmation(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Download the signed confirmation that a key was destroyed."""
    ended = caller.tenant.content_keys.filter(destroyed_at__isnull=False)
    key = get_object_or_404(ended, pk=pk)
    claims = jwt.decode(key.confirmation, options={"verify_signature": False})  # it is our own
    body = {"object": "content.destroyed", "confirmation": claims, "jws": key.confirmation}
    name = f'attachment; filename="destroyed-{caller.tenant.slug}-{key.pk}.json"'
    return JsonResponse(
        body, json_dumps_params={"indent": 2}, headers={"Content-Disposition": name}
    )
