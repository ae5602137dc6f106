"""Requests of all tenants, or of one."""

from __future__ import annotations

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from frontend.pages import operator_page
from frontend.views.requests.counts import counts
from frontend.views.requests.requests import (
    RequestFilter,
    context_of,
    engines_offered,
    models_of,
    rows_of,
    search,
)
from tenants.listing import FoundRows, Where
from tenants.models import Tenant


class InstallationFilter(RequestFilter):
    """As a tenant's, over all tenants or one of them."""

    tenant = forms.SlugField(
        required=False,
        max_length=63,
        widget=forms.TextInput({"type": "search", "placeholder": "Tenant"}),
    )
    field_order = ("q", "tenant")
    usual = "1h"
    annotated = False

    def clean_tenant(self) -> Tenant | None:
        slug = self.cleaned_data["tenant"]
        found = Tenant.objects.filter(slug=slug).first()
        if slug and found is None:
            raise ValidationError(f"There is no tenant {slug}.")
        return found


@require_GET
@operator_page
def requests(request: HttpRequest) -> HttpResponse:
    """The list, newest first."""
    models = models_of(None)
    form = InstallationFilter(request.GET, models=models, engines=engines_offered())
    found, tenant, totals = FoundRows(), None, None
    if form.is_valid():
        tenant = form.cleaned_data["tenant"]
        found = search(form, Where.of_tenant(tenant), request.GET.get("before", ""))
        totals = None if form.id else counts(form.filter, form.window(timezone.now()), tenant)
    context = context_of(request, form, found) | {
        "rows": rows_of(found),
        "counts": totals,
        "all_tenants": True,
        "live_tenant": tenant.slug if tenant else "",
        "models": models,
    }
    return render(request, "operate/requests.html", context, status=422 if form.errors else 200)
