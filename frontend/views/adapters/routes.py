"""A tenant's routes: the list, and one with what its last fit gained."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from frontend.pages import refusals_as_messages, tenant_page
from frontend.views.adapters.fingerprints import hashed, not_modified
from frontend.views.adapters.gates import EvalField
from tenants.errors import TooManyRoutes
from tenants.models import Eval, Route
from tenants.models.routes import MAX_MARGIN, RouteMethod
from tenants.permissions import Caller, Permission
from tenants.routes.jobs import fit_later

READ, EDIT = Permission.READ_ADAPTERS, Permission.EDIT_ADAPTERS
MAX_CHOICES = 100
"""Evals that can be chosen, newest first."""


class RouteForm(forms.Form):
    """A new route."""

    name = forms.CharField(max_length=63, help_text="What requests name as their model.")
    options = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 4}),
        max_length=2000,
        label="Models",
        help_text="2 to 4 base models or adapters, one on each line, from the cheapest on.",
    )
    method = forms.ChoiceField(
        choices=RouteMethod,
        initial=RouteMethod.CLASSIFIER,
        label="Chooses",
        help_text="With the second way there are two models, and streams get the best one.",
    )
    margin = forms.FloatField(
        initial=3,
        min_value=0,
        max_value=100 * MAX_MARGIN,
        label="May be worse by (points)",
        help_text="How many points fewer answers may pass than with the best model alone.",
    )

    def clean_options(self) -> list[str]:
        lines = self.cleaned_data["options"].splitlines()
        return [line.strip() for line in lines if line.strip()]


class RouteFitForm(forms.Form):
    """What a route is fitted on."""

    eval = EvalField(
        Eval.objects.none(),
        empty_label=None,
        error_messages={"invalid_choice": "This is not an eval of this tenant."},
        help_text="Each model must have a completed run of it, on the same rows.",
    )

    def __init__(self, caller: Caller, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field, evals = self.fields["eval"], caller.tenant.evals.all()
        assert isinstance(field, EvalField)
        field.queryset = evals if self.is_bound else evals[:MAX_CHOICES]


@never_cache
@require_http_methods(["GET", "POST"])
@tenant_page(READ)
def routes(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list; POST adds a route."""
    if request.method != "POST":
        return _list(request, caller, RouteForm())
    caller.require(EDIT)
    form = RouteForm(request.POST)
    if not form.is_valid():
        return _list(request, caller, form)
    fields = form.cleaned_data | {"margin": form.cleaned_data["margin"] / 100}
    try:
        made = Route.objects.add(caller.tenant, caller.user, **fields)
    except TooManyRoutes as refusal:
        form.add_error(None, refusal.message)
        return _list(request, caller, form)
    except ValidationError as error:
        form.add_error(None, [*error.messages])
        return _list(request, caller, form)
    message = (
        f"Requests for “{made.name}” are answered by {made.answers_if_off} until it is fitted."
    )
    messages.success(request, message)
    return redirect("adapters-route", caller.tenant.slug, made.name)


def _list(request: HttpRequest, caller: Caller, form: RouteForm) -> HttpResponse:
    found = caller.tenant.routes.defer("packed")
    context = {"routes": found, "form": form, "may_edit": caller.may(EDIT)}
    return render(request, "adapters/routes.html", context, status=422 if form.errors else 200)


@never_cache
@require_GET
@tenant_page(READ)
def route(request: HttpRequest, caller: Caller, route: str) -> HttpResponse:
    """One route."""
    return _page(request, caller, _found(caller, route), RouteFitForm(caller))


def _page(request: HttpRequest, caller: Caller, found: Route, form: RouteFitForm) -> HttpResponse:
    page_fingerprint = hashed(found.fit, found.is_on, found.reason, found.is_being_fitted)
    if not_modified(request, page_fingerprint):
        return HttpResponseNotModified()
    options = found.report["options"] if found.report else []
    context = {
        "route": found,
        "report": found.report,
        "rows": [(one, at == found.best) for at, one in enumerate(options)],
        "allowed": -found.margin,
        "form": form,
        "may_edit": caller.may(EDIT),
        "fingerprint": page_fingerprint,
    }
    return render(request, "adapters/route.html", context, status=422 if form.errors else 200)


@require_POST
@tenant_page(EDIT)
def fit(request: HttpRequest, caller: Caller, route: str) -> HttpResponse:
    """Fit a route, in the background."""
    found, form = _found(caller, route), RouteFitForm(caller, request.POST)
    if not form.is_valid():
        return _page(request, caller, found, form)
    try:
        with refusals_as_messages(request):
            fit_later(found, form.cleaned_data["eval"])
            messages.success(request, "The route is being fitted.")
    except ValidationError as error:
        form.add_error(None, [*error.messages])
        return _page(request, caller, found, form)
    return redirect("adapters-route", caller.tenant.slug, route)


@require_POST
@tenant_page(EDIT)
def turn(request: HttpRequest, caller: Caller, route: str, on: bool) -> HttpResponse:
    """Turn a route on or off."""
    found = _found(caller, route)
    with refusals_as_messages(request):
        if on:
            found.turn_on()
        else:
            found.turn_off()
        messages.success(request, f"“{route}” is {'on' if on else 'off'}.")
    return redirect("adapters-route", caller.tenant.slug, route)


@require_POST
@tenant_page(EDIT)
def remove(request: HttpRequest, caller: Caller, route: str) -> HttpResponse:
    """Delete a route."""
    _found(caller, route).delete()
    messages.success(request, f"“{route}” deleted: requests that name it are refused.")
    return redirect("adapters-routes", caller.tenant.slug)


def _found(caller: Caller, name: str) -> Route:
    return get_object_or_404(caller.tenant.routes.select_related("eval").defer("packed"), name=name)
