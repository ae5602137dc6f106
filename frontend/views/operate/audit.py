"""Every change to the installation, its tenants' included."""

from __future__ import annotations

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from frontend.pages import operator_page
from frontend.views.audit import AuditFilter, context_of
from tenants.models import AuditEntry
from tenants.models.audit import AuditEntryQuerySet


class AuditLogFilter(AuditFilter):
    """As a tenant's, over all tenants but internal ones, or over one of them."""

    tenant = forms.CharField(
        required=False, max_length=63, widget=forms.TextInput({"type": "search"})
    )

    def narrow(self, entries: AuditEntryQuerySet) -> AuditEntryQuerySet:
        slug = self.cleaned_data["tenant"].strip()
        found = super().narrow(entries)
        if slug:
            return found.filter(tenant__slug=slug)
        return found.of_customers()


@require_GET
@operator_page
def audit(request: HttpRequest) -> HttpResponse:
    """The log, newest first."""
    form = AuditLogFilter(request.GET)
    context = context_of(request, form, AuditEntry.objects.select_related("tenant"))
    return render(request, "operate/audit.html", context, status=422 if form.errors else 200)
