"""Saved prompts of the playground, and sets of them: a member's own, and those that others of the
tenant share. The page's script saves and deletes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Func, IntegerField
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from frontend.pages import tenant_page
from tenants.errors import Refused
from tenants.models import Membership, PromptSet, SavedPrompt
from tenants.models.saved.kept import MAX_NAME, Shared
from tenants.models.saved.prompts import MAX_CHARS, MAX_SET
from tenants.permissions import Caller, Permission

MAX_LISTED = 200

playground_page = tenant_page(Permission.USE_PLAYGROUND)


class PromptForm(forms.Form):
    """A prompt under a name."""

    name = forms.CharField(max_length=MAX_NAME)
    text = forms.CharField(max_length=MAX_CHARS, strip=False)
    system = forms.CharField(max_length=MAX_CHARS, required=False, strip=False)
    shared = forms.BooleanField(required=False)


class SetForm(forms.Form):
    """A set under a name; its prompts are a JSON list of texts."""

    name = forms.CharField(max_length=MAX_NAME)
    prompts = forms.CharField(max_length=2 * MAX_SET * MAX_CHARS)
    shared = forms.BooleanField(required=False)

    def clean_prompts(self) -> list[str]:
        try:
            given = json.loads(self.cleaned_data["prompts"])
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise ValidationError("This is no list of prompts.")
        found = [one.strip() for one in given if one.strip()]
        if not 1 <= len(found) <= MAX_SET:
            raise ValidationError(f"A set has 1 to {MAX_SET} prompts; this has {len(found)}.")
        for number, one in enumerate(found, start=1):
            if len(one) > MAX_CHARS or "\0" in one:
                raise ValidationError(f"Prompt {number} has more than {MAX_CHARS:,} characters.")
        return found


def usable(caller: Caller) -> list[dict[str, Any]]:
    """The prompts that the caller can use, by name."""
    if caller.role is None:
        return []
    found = SavedPrompt.objects.usable_by(caller.tenant, caller.user)[:MAX_LISTED]
    return [_prompt(one, caller) for one in found]


def usable_sets(caller: Caller) -> list[dict[str, Any]]:
    """The sets that the caller can use, by name, each with how many prompts it has."""
    if caller.role is None:
        return []
    count = Func("prompts", function="jsonb_array_length", output_field=IntegerField())
    sets = PromptSet.objects.usable_by(caller.tenant, caller.user).defer("prompts")
    found = sets.annotate(count=count)[:MAX_LISTED]
    return [_told(one, caller) | {"count": one.count} for one in found]


def _prompt(prompt: SavedPrompt, caller: Caller) -> dict[str, Any]:
    return _told(prompt, caller) | {"text": prompt.text, "system": prompt.system}


def _told(one: Shared, caller: Caller) -> dict[str, Any]:
    user = one.member.user
    by = "" if user == caller.user else user.get_username()
    return {"id": one.pk, "name": one.name, "shared": one.shared, "by": by}


@require_POST
@playground_page
def save(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Keep a prompt; one of the caller's with the same name is replaced."""

    def keep(member: Membership, given: dict[str, Any]) -> dict[str, Any]:
        return _prompt(SavedPrompt.objects.keep(member, **given), caller)

    return _kept(caller, PromptForm(request.POST), keep)


@require_GET
@playground_page
def prompts_of(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """A set that the caller can use, with its prompts."""
    if caller.role is None:
        raise Http404
    sets = PromptSet.objects.usable_by(caller.tenant, caller.user)
    found = get_object_or_404(sets, pk=pk)
    return JsonResponse(_told(found, caller) | {"prompts": found.prompts})


@require_POST
@playground_page
def save_set(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Keep a set; one of the caller's with the same name is replaced."""

    def keep(member: Membership, given: dict[str, Any]) -> dict[str, Any]:
        made = PromptSet.objects.keep(member, **given)
        return _told(made, caller) | {"count": len(made.prompts)}

    return _kept(caller, SetForm(request.POST), keep)


def _kept(
    caller: Caller,
    form: forms.Form,
    keep: Callable[[Membership, dict[str, Any]], dict[str, Any]],
) -> HttpResponse:
    member = Membership.objects.filter(tenant=caller.tenant, user=caller.user).first()
    if member is None:
        raise PermissionDenied("Only members of the tenant keep prompts.")
    if not form.is_valid():
        (field, errors), *_ = form.errors.items()
        return JsonResponse({"message": f"{field.capitalize()}: {errors[0]}"}, status=422)
    try:
        return JsonResponse(keep(member, form.cleaned_data))
    except Refused as refused:
        return JsonResponse({"message": refused.message}, status=409)


@require_POST
@playground_page
def delete(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Delete one of the caller's own prompts."""
    get_object_or_404(SavedPrompt.objects.of(caller.tenant, caller.user), pk=pk).delete()
    return JsonResponse({})


@require_POST
@playground_page
def delete_set(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Delete one of the caller's own sets."""
    get_object_or_404(PromptSet.objects.of(caller.tenant, caller.user), pk=pk).delete()
    return JsonResponse({})
