"""Rollouts move a base model's tenants to a new revision: start, watch and end them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from frontend.pages import operator_page, refusals_as_messages
from frontend.views.operate import models
from frontend.views.operate.rollout_form import RolloutForm
from tenants.models import (
    BaseModel,
    GatewayProcess,
    PoolRevision,
    Rollout,
    RolloutTenant,
    Standing,
    Tenant,
    Turn,
)
from tenants.rollouts import progress


class WeightForm(forms.Form):
    """A weight set by hand, whatever the plan says."""

    weight = forms.IntegerField(min_value=0, max_value=100, label="Weight in percent")


class TurnForm(forms.Form):
    """A tenant whose turn is set by hand."""

    tenant = forms.SlugField(
        label="Tenant",
        help_text="The tenant's slug.",
        widget=forms.TextInput({"autocomplete": "off"}),
    )
    turn = forms.ChoiceField(
        choices=[(Turn.FIRST, "First: as soon as its adapters have passed"),
                 (Turn.LAST, "Last: when the rollout is finished")]
    )  # fmt: skip

    def clean_tenant(self) -> Tenant:
        tenant = Tenant.objects.filter(slug=self.cleaned_data["tenant"]).first()
        if tenant is None:
            raise ValidationError("There is no such tenant.")
        return tenant


@require_GET
@operator_page
def rollout(request: HttpRequest, rollout: int) -> HttpResponse:
    """The rollout's progress, with forms and actions."""
    return _page(request, _find(rollout))


@require_POST
@operator_page
def start(request: HttpRequest, pk: int) -> HttpResponse:
    """Begin a rollout."""
    base_model = get_object_or_404(BaseModel, pk=pk)
    form = RolloutForm(base_model, request.POST)
    if not form.is_valid():
        return models.page(request, base_model, rollout_form=form)
    with refusals_as_messages(request):
        made = Rollout.objects.start(created_by=request.user, **form.cleaned_data)
        messages.success(request, "Rollout started. Adapters are tested before tenants move.")
        return redirect("operate_rollouts-one", made.pk)
    return redirect("operate_models-one", pk)


@require_POST
@operator_page
def step(request: HttpRequest, rollout: int, what: str) -> HttpResponse:
    """Pause, resume, finish or abort it."""
    found = _find(rollout)
    with refusals_as_messages(request):
        getattr(found, what)()
        messages.success(request, f"The rollout is {found.state}.")
    return redirect("operate_rollouts-one", found.pk)


@require_POST
@operator_page
def weigh(request: HttpRequest, rollout: int) -> HttpResponse:
    """Set its weight by hand."""
    found = _find(rollout)
    form = WeightForm(request.POST)
    if not form.is_valid():
        return _page(request, found, weight_form=form)
    with refusals_as_messages(request):
        found.set_weight(form.cleaned_data["weight"])
        messages.success(request, f"The weight is {found.weight}%.")
    return redirect("operate_rollouts-one", found.pk)


@require_POST
@operator_page
def set_turn(request: HttpRequest, rollout: int) -> HttpResponse:
    """Have a tenant move first or last."""
    found = _find(rollout)
    form = TurnForm(request.POST)
    if not form.is_valid():
        return _page(request, found, turn_form=form)
    tenant, turn = form.cleaned_data["tenant"], form.cleaned_data["turn"]
    found.tenants.update_or_create(tenant=tenant, defaults={"turn": turn})
    messages.success(request, f"{tenant} moves {turn}.")
    return redirect("operate_rollouts-one", found.pk)


@require_POST
@operator_page
def drop_turn(request: HttpRequest, rollout: int, pk: int) -> HttpResponse:
    """Remove a tenant's turn: the weight decides again when it moves."""
    get_object_or_404(RolloutTenant, pk=pk, rollout=rollout).delete()
    return redirect("operate_rollouts-one", rollout)


@require_POST
@operator_page
def stand(request: HttpRequest, pk: int, standing: str) -> HttpResponse:
    """Set a revision's standing, for all tenants at once."""
    revision = get_object_or_404(PoolRevision, pk=pk)
    with refusals_as_messages(request):
        revision.stand(Standing(standing))
        messages.success(request, f"{revision.short} is now {revision.standing}.")
    return redirect("operate_models-one", revision.base_model_id)


def state(pk: int) -> dict[str, Any]:
    """Context of the live part of the page."""
    found = _find(pk)
    report = progress.report(found)
    engines = GatewayProcess.objects.engines_of()
    return {
        "rollout": found,
        "rollout_query": f"rollout={pk}",
        "progress": report,
        "engines": engines.get(found.revision.digest, 0),
        "steps": [(weight, weight <= found.weight) for weight in found.steps],
        "allowed_percent": report["old"]["error_percent"] + found.max_error_percent,
    }


def _find(pk: int) -> Rollout:
    found = Rollout.objects.select_related("base_model", "revision", "created_by")
    return get_object_or_404(found, pk=pk)


def _page(
    request: HttpRequest,
    found: Rollout,
    *,
    turn_form: TurnForm | None = None,
    weight_form: WeightForm | None = None,
) -> HttpResponse:
    turn_form = turn_form or TurnForm()
    weight_form = weight_form or WeightForm(initial={"weight": found.weight})
    context = state(found.pk) | {
        "turns": list(found.tenants.select_related("tenant")),
        "turn_form": turn_form,
        "weight_form": weight_form,
    }
    status = 422 if turn_form.errors or weight_form.errors else 200
    return render(request, "operate/models/rollout.html", context, status=status)
