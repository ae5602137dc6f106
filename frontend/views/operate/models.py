"""The base models that engines serve, as they described them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_GET

from frontend.pages import operator_page
from tenants.fleet.gateways import gateways
from tenants.models import BaseModel, Price


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
        "currency": settings.CURRENCY.upper(),
    }
    return render(request, "operate/models.html", context)


@require_GET
@operator_page
def model(request: HttpRequest, pk: int) -> HttpResponse:
    """One base model: what an adapter on it may look like, and what it costs."""
    found = get_object_or_404(BaseModel.objects.annotate(adapter_count=Count("adapters")), pk=pk)
    context = {
        "model": found,
        "modules": module_kinds(found.modules),
        "engines": [one for one in gateways().fleet().engines if one["base_model"] == found.name],
        "prices": list(Price.objects.at(timezone.now()).filter(base_model=found)[:20]),
        "currency": settings.CURRENCY.upper(),
    }
    return render(request, "operate/model.html", context)


def module_kinds(modules: Mapping[str, Sequence[int]]) -> list[ModuleKind]:
    """Module paths to [out, in] features, grouped by the last part of the path and the shape."""
    counts = Counter(
        (path.rpartition(".")[2], shape[0], shape[1]) for path, shape in modules.items()
    )
    return [ModuleKind(name, out, inward, n) for (name, out, inward), n in sorted(counts.items())]
