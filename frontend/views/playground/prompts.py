"""Saved prompts of the playground, and sets of them: a member's own, and those that others of the
tenant share. The page's script saves and deletes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Func, IntegerField
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from frontend.pages import member_to_save, tenant_page
from tenants.errors import Refused
from tenants.models import Alias, Membership, PromptSet, SavedPrompt, SetRun
from tenants.models.saved.kept import MAX_NAME, Shared
from tenants.models.saved.prompts import MAX_CHARS, MAX_SET
from tenants.models.saved.votes import CHOICES, MAX_COMPARED, MAX_MODEL, Run, Score
from tenants.naming import LIVE
from tenants.permissions import Caller, Permission

MAX_LISTED = 200
MAX_ADDED = 1_000
"""Maximum number of runs, over all sets, whose votes are added up."""

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
        given = _texts(self.cleaned_data["prompts"])
        if given is None:
            raise ValidationError("This is not a list of prompts.")
        found = [one.strip() for one in given if one.strip()]
        if not 1 <= len(found) <= MAX_SET:
            raise ValidationError(f"A set has 1 to {MAX_SET} prompts; this has {len(found)}.")
        for number, one in enumerate(found, start=1):
            if len(one) > MAX_CHARS or "\0" in one:
                raise ValidationError(f"Prompt {number} has more than {MAX_CHARS:,} characters.")
        return found


class VotesForm(forms.Form):
    """A run's votes so far: `models` by pane and `choices` by prompt are JSON lists."""

    run = forms.UUIDField()
    models = forms.CharField(max_length=2 * MAX_COMPARED * MAX_MODEL)
    choices = forms.CharField(max_length=10 * MAX_SET)

    def __init__(self, given: Any, count: int) -> None:
        """`count` prompts are in the set."""
        super().__init__(given)
        self._count = count

    def clean_models(self) -> list[str]:
        found = _texts(self.cleaned_data["models"])
        if found is None or not 2 <= len(found) <= MAX_COMPARED:
            raise ValidationError(f"Votes compare 2 to {MAX_COMPARED} models.")
        if any(not one or len(one) > MAX_MODEL or "\0" in one for one in found):
            raise ValidationError(f"A model's name has 1 to {MAX_MODEL} characters.")
        return found

    def clean_choices(self) -> list[str]:
        found = _texts(self.cleaned_data["choices"])
        if found is None or not set(found) <= set(CHOICES):
            raise ValidationError("A vote is for a pane's letter, or a tie.")
        if len(found) != self._count:
            raise ValidationError(
                f"There are {len(found)} votes for {self._count} prompts: the set has changed."
            )
        return found


def _texts(text: str) -> list[str] | None:
    """A JSON list of texts."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(given, list) and all(isinstance(one, str) for one in given)
    return given if is_list else None


def usable(caller: Caller) -> list[dict[str, Any]]:
    """The prompts that the caller can use, by name; without their texts, which may be long."""
    if caller.role is None:
        return []
    found = SavedPrompt.objects.usable_by(caller.tenant, caller.user).defer("text", "system")
    return [_summary(one, caller) for one in found[:MAX_LISTED]]


def usable_sets(caller: Caller) -> list[dict[str, Any]]:
    """The sets that the caller can use, by name, each with how many prompts it has."""
    if caller.role is None:
        return []
    count = Func("prompts", function="jsonb_array_length", output_field=IntegerField())
    sets = PromptSet.objects.usable_by(caller.tenant, caller.user).defer("prompts")
    found = sets.annotate(count=count)[:MAX_LISTED]
    return [_summary(one, caller) | {"count": one.count} for one in found]


def _summary(one: Shared, caller: Caller) -> dict[str, Any]:
    user = one.member.user
    by = "" if user == caller.user else user.get_username()
    return {"id": one.pk, "name": one.name, "shared": one.shared, "by": by}


@require_GET
@playground_page
def prompt(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """A prompt that the caller can use, with its texts."""
    if caller.role is None:
        raise Http404
    found = get_object_or_404(SavedPrompt.objects.usable_by(caller.tenant, caller.user), pk=pk)
    return JsonResponse(_summary(found, caller) | {"text": found.text, "system": found.system})


@require_POST
@playground_page
def save(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Save a prompt; one of the caller's with the same name is replaced."""

    def keep(member: Membership, given: dict[str, Any]) -> dict[str, Any]:
        return _summary(SavedPrompt.objects.keep(member, **given), caller)

    return _kept(caller, PromptForm(request.POST), keep)


@require_GET
@playground_page
def prompts_of(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """A set that the caller can use, with its prompts and the models' scores; and each `?model=`
    with the version that it means now, with which the set is run."""
    found = _usable_set(caller, pk)
    models = [_version_of(caller, name) for name in request.GET.getlist("model")[:MAX_COMPARED]]
    details = {"prompts": found.prompts, "models": models, "scores": _scores(found)}
    return JsonResponse(_summary(found, caller) | details)


def _usable_set(caller: Caller, pk: int) -> PromptSet:
    if caller.role is None:
        raise Http404
    return get_object_or_404(PromptSet.objects.usable_by(caller.tenant, caller.user), pk=pk)


def _version_of(caller: Caller, name: str) -> str:
    """An adapter's name with the number of the version that it, or its alias, means now."""
    adapter, _, alias = name.partition("@")
    found = Alias.objects.filter(
        adapter__tenant=caller.tenant, adapter__name=adapter, name=alias or LIVE
    )
    number = found.values_list("version__number", flat=True).first()
    return name if number is None else f"{adapter}@{number}"


def _scores(found: PromptSet) -> list[dict[str, Any]]:
    return [asdict(one) for one in found.runs.all().scores()]


def scores_of(caller: Caller, models: Sequence[str]) -> list[Score]:
    """The scores of these models where they were compared, over the newest runs of all sets that
    the caller can use."""
    if caller.role is None:
        return []
    sets = PromptSet.objects.usable_by(caller.tenant, caller.user).values("pk")
    runs = SetRun.objects.filter(prompt_set__in=sets, compared__contains=models)[:MAX_ADDED]
    return [one for one in runs.scores() if one.model in models]


@require_POST
@playground_page
def vote(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Store a run's votes so far; returns the models' scores over all runs of the set."""
    found = _usable_set(caller, pk)

    def keep(member: Membership, given: dict[str, Any]) -> dict[str, Any]:
        run = Run(given["models"], given["choices"])
        try:
            SetRun.objects.record(found, member, given["run"], run)
        except PromptSet.DoesNotExist:
            raise Http404 from None
        return {"scores": _scores(found)}

    return _kept(caller, VotesForm(request.POST, len(found.prompts)), keep)


@require_POST
@playground_page
def save_set(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Save a set; one of the caller's with the same name is replaced. If its prompts have changed,
    its votes are deleted."""

    def keep(member: Membership, given: dict[str, Any]) -> dict[str, Any]:
        known = PromptSet.objects.filter(member=member, name=given["name"]).first()
        made = PromptSet.objects.keep(member, **given)
        if known is not None and known.prompts != made.prompts:
            made.runs.all().delete()
        return _summary(made, caller) | {"count": len(made.prompts)}

    return _kept(caller, SetForm(request.POST), keep)


def _kept(
    caller: Caller,
    form: forms.Form,
    keep: Callable[[Membership, dict[str, Any]], dict[str, Any]],
) -> HttpResponse:
    member = member_to_save(caller, "prompts")
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
