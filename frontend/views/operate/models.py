"""The base models that engines serve, as engines described them, with revisions and defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from frontend.pages import operator_page
from frontend.views.operate.rollout_form import RolloutForm
from tenants.fleet.gateways import gateways
from tenants.models import BaseModel, GatewayProcess, Price, Standing
from tenants.models.adapters import DEFAULTS

SHOWN_ROLLOUTS = 10


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """Modules of one name and shape, over the layers of a model."""

    name: str
    out_features: int
    in_features: int
    count: int


@require_GET
@operator_page
def models(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    prices = {
        price.base_model_id: price
        for price in Price.objects.at(now, "in force").filter(base_model__isnull=False)
    }
    serving = Counter(one["base_model"] for one in gateways().fleet().engines)
    found = BaseModel.objects.annotate(adapter_count=Count("adapters"))
    context = {
        "models": [(one, prices.get(one.pk), serving[one.name]) for one in found],
    }
    return render(request, "operate/models/models.html", context)


class SettingsForm(forms.Form):
    """An operator's settings of a base model."""

    serves_new = forms.BooleanField(
        required=False, label="Serve new revisions immediately, without a rollout"
    )

    def __init__(self, base_model: BaseModel, data: Any = None) -> None:
        super().__init__(data, initial={"serves_new": base_model.serves_new, **base_model.defaults})
        self._base_model = base_model
        for name, (kind, least, most) in DEFAULTS.items():
            field = forms.FloatField if kind is float else forms.IntegerField
            self.fields[name] = field(
                required=False,
                min_value=least,
                max_value=most,
                label=f"Default {name}",
                widget=forms.TextInput({"inputmode": "decimal", "autocomplete": "off"}),
            )

    def save(self) -> None:
        """Store the settings of a valid form."""
        given = {name: self.cleaned_data[name] for name in DEFAULTS}
        base_model = self._base_model
        base_model.serves_new = self.cleaned_data["serves_new"]
        base_model.defaults = {name: value for name, value in given.items() if value is not None}
        base_model.save(update_fields=["serves_new", "defaults"])


@require_http_methods(["GET", "POST"])
@operator_page
def model(request: HttpRequest, pk: int) -> HttpResponse:
    """One base model: its revisions, the modules that an adapter may have, its prices; POST saves
    its settings."""
    found = get_object_or_404(BaseModel, pk=pk)
    if request.method != "POST":
        return page(request, found)
    form = SettingsForm(found, request.POST)
    if not form.is_valid():
        return page(request, found, settings_form=form)
    form.save()
    messages.success(request, "Settings saved.")
    return redirect("operate_models-one", pk)


def page(
    request: HttpRequest,
    base_model: BaseModel,
    *,
    settings_form: SettingsForm | None = None,
    rollout_form: RolloutForm | None = None,
) -> HttpResponse:
    """The page of a base model, with forms that have errors."""
    revisions = base_model.revisions.annotate(
        passed=Count("trials", Q(trials__passed=True)),
        failed=Count("trials", Q(trials__passed=False)),
    ).order_by("-seen_at", "-id")
    counts = GatewayProcess.objects.engines_of()
    rollouts = list(base_model.rollouts.select_related("revision")[:SHOWN_ROLLOUTS])
    fleet = gateways().fleet().engines
    context = {
        "model": base_model,
        "adapter_count": base_model.adapters.count(),
        "revisions": [(one, counts.get(one.digest, 0)) for one in revisions],
        "rollable": any(one.standing != Standing.SERVING for one in revisions),
        "rollouts": rollouts,
        "rolling": next((one for one in rollouts if one.is_open), None),
        "settings_form": settings_form or SettingsForm(base_model),
        "rollout_form": rollout_form or RolloutForm(base_model),
        "modules": module_kinds(base_model.modules),
        "engines": [one for one in fleet if one["base_model"] == base_model.name],
        "prices": list(Price.objects.at(timezone.now()).filter(base_model=base_model)[:20]),
    }
    status = 200 if settings_form is None and rollout_form is None else 422
    return render(request, "operate/models/model.html", context, status=status)


def module_kinds(modules: Mapping[str, Sequence[int]]) -> list[ModuleKind]:
    """Module paths to [out, in] features, grouped by the last part of the path and the shape."""
    counts = Counter(
        (path.rpartition(".")[2], shape[0], shape[1]) for path, shape in modules.items()
    )
    return [ModuleKind(name, out, inward, n) for (name, out, inward), n in sorted(counts.items())]
