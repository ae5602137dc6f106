"""Splits of an adapter's aliases: the page that starts one, and what can be done with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from frontend.pages import refusals_as_messages, tenant_page
from frontend.views.adapters.adapters import EDIT, MAX_CHOICES, VersionField, find
from frontend.views.adapters.split_figures import STICKY
from inference.splitting import StickyBy
from tenants.errors import Refused
from tenants.evals import required
from tenants.models import Adapter, AdapterVersion, Alias, ApiKey, Split, SplitState, State
from tenants.models.annotations import is_word
from tenants.models.audit import actor_of
from tenants.models.splits import MAX_SECONDS, MAX_WEIGHT, GuardKind, check_weights
from tenants.permissions import Caller

BY_MARGIN = (GuardKind.ERRORS, GuardKind.CUTS, GuardKind.SLOW, GuardKind.STRUCTURE)
"""Guards that are on if their margin is given."""


class AliasField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """Choice of an alias by its name."""

    def label_from_instance(self, obj: Alias) -> str:
        return obj.name


class SplitForm(forms.Form):
    """A split to start."""

    alias = AliasField(Alias.objects.none(), to_field_name="name", empty_label=None)
    version = VersionField(
        AdapterVersion.objects.none(),
        to_field_name="number",
        empty_label=None,
        label="Candidate",
        error_messages={"invalid_choice": "This is not a ready version of this adapter."},
    )
    shadow_key = forms.ModelChoiceField(
        ApiKey.objects.none(), required=False, empty_label="No: it gets requests",
        label="Shadow, billed to", help_text="The candidate gets copies of requests instead, which "
        "are billed to this key and whose answers nobody sees.",
    )  # fmt: skip
    weights = forms.CharField(
        initial="5, 25, 50",
        max_length=60,
        label="Steps",
        help_text="Percent of the keys that get the candidate, from 1 to 99.",
    )
    min_requests = forms.IntegerField(
        initial=100,
        label="Requests at each step",
        help_text="So many requests the candidate answers before the next step.",
    )
    sticky = forms.ChoiceField(
        choices=[(one.value, text) for one, text in STICKY.items()],
        label="Choose the version by",
        help_text="Requests without it are chosen one by one.",
    )
    header = forms.CharField(required=False, max_length=64, label="Header name")
    errors_margin = forms.FloatField(
        required=False, initial=2, min_value=0, max_value=100, label="More errors (points)",
        help_text="How much worse the candidate may be, in percentage points. Empty: not compared.",
    )  # fmt: skip
    cuts_margin = forms.FloatField(
        required=False, min_value=0, max_value=100, label="More answers cut by length (points)"
    )
    slow_margin = forms.FloatField(
        required=False, min_value=0, max_value=100, label="More slow first tokens (points)"
    )
    slow_seconds = forms.FloatField(
        required=False, initial=2, min_value=0.01, max_value=MAX_SECONDS,
        label="Slow is after (s)",
    )  # fmt: skip
    structure_margin = forms.FloatField(
        required=False, min_value=0, max_value=100, label="More malformed answers (points)",
        help_text="Answers to requests with a JSON schema, or with tools, that do not follow it.",
    )  # fmt: skip
    score_name = forms.CharField(
        required=False, validators=[is_word], label="Score name",
        help_text="The mean of a score from 0 to 1 that requests are given.",
    )  # fmt: skip
    score_margin = forms.FloatField(
        required=False, initial=5, min_value=0, max_value=100, label="Lower score (points)"
    )
    max_requests = forms.IntegerField(initial=50_000, label="Ends after requests")
    max_hours = forms.IntegerField(initial=168, label="Ends after hours")
    rolls_back = forms.BooleanField(
        required=False, initial=True, label="Roll back by itself when a guard fails"
    )
    promotes = forms.BooleanField(
        required=False, label="Promote by itself when all guards have passed"
    )

    def __init__(self, adapter: Adapter, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ready = adapter.versions.filter(state=State.READY)
        version, alias = self.fields["version"], self.fields["alias"]
        assert isinstance(version, VersionField) and isinstance(alias, AliasField)
        version.queryset = ready if self.is_bound else ready[:MAX_CHOICES]
        alias.queryset = adapter.aliases.all()
        key = self.fields["shadow_key"]
        assert isinstance(key, forms.ModelChoiceField)
        keys = adapter.tenant.keys.with_text().filter(revoked_at=None)
        key.queryset = keys if self.is_bound else keys[:MAX_CHOICES]

    def clean_weights(self) -> list[int]:
        parts = [one.strip() for one in self.cleaned_data["weights"].split(",")]
        if not all(one.isdecimal() and len(one) < 4 for one in parts):
            raise ValidationError("Use whole percentages with commas between, such as 5, 25, 50.")
        weights = [int(one) for one in parts]
        check_weights(weights)
        return weights

    def plan(self) -> dict[str, Any]:
        """The fields of the split."""
        names = ("weights", "min_requests", "sticky", "max_requests", "max_hours", "rolls_back",
                 "promotes", "shadow_key")  # fmt: skip
        header = self.cleaned_data["header"] if self.header_counts else ""
        kept = {name: self.cleaned_data[name] for name in names}
        return kept | {"header": header, "guards": list(self._guards())}

    @property
    def header_counts(self) -> bool:
        return bool(self.cleaned_data["sticky"] == StickyBy.HEADER)

    def _guards(self) -> Iterator[dict[str, Any]]:
        given = self.cleaned_data
        for kind in BY_MARGIN:
            if (margin := given[f"{kind}_margin"]) is not None:
                also = {"seconds": given["slow_seconds"]} if kind == GuardKind.SLOW else {}
                yield {"kind": str(kind), "margin": margin / 100} | also
        if given["score_name"]:
            margin = (given["score_margin"] or 0) / 100
            yield {"kind": str(GuardKind.SCORE), "name": given["score_name"], "margin": margin}


@require_http_methods(["GET", "POST"])
@tenant_page(EDIT)
def start(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """The page that starts a split; `?version=` is the candidate."""
    found = find(caller, name)
    if request.method != "POST":
        initial = {"version": request.GET.get("version", "")}
        return _form_page(request, found, SplitForm(found, initial=initial))
    form = SplitForm(found, request.POST)
    if not form.is_valid():
        return _form_page(request, found, form)
    alias, candidate = form.cleaned_data["alias"], form.cleaned_data["version"]
    try:
        required.start_split(alias, candidate, caller, actor_of(request), **form.plan())
    except Refused as refusal:
        form.add_error(None, refusal.message)
        return _form_page(request, found, form)
    except ValidationError as error:
        form.add_error(None, [*error.messages])
        return _form_page(request, found, form)
    what = "copies of a share" if form.cleaned_data["shadow_key"] else "a share"
    message = f"Version {candidate.number} gets {what} of “{alias.name}” from now on."
    messages.success(request, message)
    return redirect("adapters-one", caller.tenant.slug, name)


def _form_page(request: HttpRequest, adapter: Adapter, form: SplitForm) -> HttpResponse:
    context = {"adapter": adapter, "form": form}
    return render(request, "adapters/split.html", context, status=422 if form.errors else 200)


class SplitWeightForm(forms.Form):
    """The share of a split's candidate."""

    weight = forms.IntegerField(min_value=0, max_value=MAX_WEIGHT)


@require_POST
@tenant_page(EDIT)
def weigh(request: HttpRequest, caller: Caller, name: str, pk: int) -> HttpResponse:
    """Set the weight of a split."""
    found = get_object_or_404(find(caller, name).splits.select_related("candidate"), pk=pk)
    form = SplitWeightForm(request.POST)
    if not form.is_valid():
        messages.error(request, f"The weight must be a whole number from 0 to {MAX_WEIGHT}.")
        return redirect("adapters-one", caller.tenant.slug, name)
    with refusals_as_messages(request):
        found.set_weight(form.cleaned_data["weight"], "The weight was set.")
        message = f"Version {found.candidate.number} gets {found.weight}% from now on."
        messages.success(request, message)
    return redirect("adapters-one", caller.tenant.slug, name)


@require_POST
@tenant_page(EDIT)
def act(request: HttpRequest, caller: Caller, name: str, pk: int, what: str) -> HttpResponse:
    """Pause, resume, evaluate, promote or stop a split."""
    found = get_object_or_404(find(caller, name).splits.select_related("candidate"), pk=pk)
    with refusals_as_messages(request):
        if what == "evaluate":
            required.evaluate(found, caller, actor_of(request))
            messages.success(request, "The eval is run on the candidate.")
        else:
            messages.success(request, _done(found, what))
    return redirect("adapters-one", caller.tenant.slug, name)


def _done(split: Split, what: str) -> str:
    number = split.candidate.number
    if what == "pause":
        split.pause()
        return "The split is paused: its weight stays."
    if what == "resume":
        split.resume()
        return "The split goes on."
    if what == "promote":
        split.promote("Promoted by request.")
        return f"“{split.alias}” points at version {number}."
    split.end(SplitState.STOPPED, "Stopped by request.")
    return f"Version {number} gets no more requests of “{split.alias}”."
