"""Saved prompts of the playground: a member's own, and those that others of the tenant share."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from frontend.pages import tenant_page
from tenants.errors import Refused
from tenants.models import Membership, SavedPrompt
from tenants.models.saved.prompts import MAX_CHARS
from tenants.permissions import Caller, Permission

MAX_LISTED = 200

playground_page = tenant_page(Permission.USE_PLAYGROUND)


class PromptForm(forms.Form):
    """A prompt under a name."""

    name = forms.CharField(max_length=80)
    text = forms.CharField(max_length=MAX_CHARS, strip=False)
    system = forms.CharField(max_length=MAX_CHARS, required=False, strip=False)
    shared = forms.BooleanField(required=False)


def usable(caller: Caller) -> list[dict[str, Any]]:
    """What the caller can use, by name."""
    if caller.role is None:
        return []
    found = SavedPrompt.objects.usable_by(caller.tenant, caller.user)[:MAX_LISTED]
    return [_told(one, caller) for one in found]


def _told(prompt: SavedPrompt, caller: Caller) -> dict[str, Any]:
    user = prompt.member.user
    by = "" if user == caller.user else user.get_username()
    return {
        "id": prompt.pk,
        "name": prompt.name,
        "text": prompt.text,
        "system": prompt.system,
        "shared": prompt.shared,
        "by": by,
    }


@require_POST
@playground_page
def save(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Keep a prompt; one of the caller's with the same name is replaced."""
    member = Membership.objects.filter(tenant=caller.tenant, user=caller.user).first()
    if member is None:
        raise PermissionDenied("Only members of the tenant keep prompts.")
    form = PromptForm(request.POST)
    if not form.is_valid():
        (field, errors), *_ = form.errors.items()
        return JsonResponse({"message": f"{field.capitalize()}: {errors[0]}"}, status=422)
    try:
        prompt = SavedPrompt.objects.keep(
            member, form.cleaned_data.pop("name"), **form.cleaned_data
        )
    except Refused as refused:
        return JsonResponse({"message": refused.message}, status=409)
    return JsonResponse(_told(prompt, caller))


@require_POST
@playground_page
def delete(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Delete one of the caller's own."""
    get_object_or_404(SavedPrompt.objects.of(caller.tenant, caller.user), pk=pk).delete()
    return JsonResponse({})
