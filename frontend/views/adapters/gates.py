"""What an adapter's aliases require of a version: a pass rate in an eval."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from frontend.pages import tenant_page
from frontend.views.adapters.adapters import EDIT, MAX_CHOICES, find
from frontend.views.adapters.split_figures import gates_of
from tenants.models import LIVE, Adapter, Eval, PromotionGate
from tenants.permissions import Caller


class EvalField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """Choice of an eval by its name."""

    def label_from_instance(self, obj: Eval) -> str:
        return obj.label


class GateForm(forms.Form):
    """What an alias is to require."""

    alias = forms.CharField(
        initial=LIVE,
        max_length=63,
        help_text="An alias that does not exist yet may be named.",
    )
    eval = EvalField(
        Eval.objects.none(),
        empty_label=None,
        error_messages={"invalid_choice": "This is not an eval of this tenant."},
    )
    percent = forms.FloatField(
        initial=90,
        min_value=0.1,
        max_value=100,
        label="Rows that pass, at least (%)",
        help_text="In the last finished run whose model is the version, such as name@3.",
    )

    def __init__(self, caller: Caller, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        evals = caller.tenant.evals.all()
        field = self.fields["eval"]
        assert isinstance(field, EvalField)
        field.queryset = evals if self.is_bound else evals[:MAX_CHOICES]


@require_http_methods(["GET", "POST"])
@tenant_page(EDIT)
def gates(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """What the aliases require, and the form that sets it for one."""
    found = find(caller, name)
    if request.method != "POST":
        return _page(request, found, GateForm(caller))
    form = GateForm(caller, request.POST)
    if not form.is_valid():
        return _page(request, found, form)
    alias, eval = form.cleaned_data["alias"], form.cleaned_data["eval"]
    try:
        PromotionGate.objects.put(found, alias, eval, form.cleaned_data["percent"] / 100)
    except ValidationError as error:
        form.add_error(None, [*error.messages])
        return _page(request, found, form)
    messages.success(request, f"“{alias}” requires the eval {eval.label} from now on.")
    return redirect("adapters-gates", caller.tenant.slug, name)


def _page(request: HttpRequest, adapter: Adapter, form: GateForm) -> HttpResponse:
    context = {
        "adapter": adapter,
        "form": form,
        "gates": gates_of(adapter),
    }
    return render(request, "adapters/gates.html", context, status=422 if form.errors else 200)


@require_POST
@tenant_page(EDIT)
def remove(request: HttpRequest, caller: Caller, name: str, pk: int) -> HttpResponse:
    """Let the alias point at any ready version again."""
    gate = get_object_or_404(find(caller, name).gates.all(), pk=pk)
    gate.delete()
    messages.success(request, f"“{gate.alias}” requires no eval any more.")
    return redirect("adapters-gates", caller.tenant.slug, name)
