"""The installation's default limits: the ceiling of every tenant without one of its own."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from frontend.pages import operator_page
from frontend.views.limits import LimitsForm, help_of, shown
from tenants.limits import ceilings
from tenants.limits.kinds import TENANT_KINDS
from tenants.models import LimitScope, LimitSet, Tenant
from tenants.models.accounts import TenantQuerySet

MAX_LISTED = 50
"""Maximum number of tenants with their own ceiling listed; the tenants page finds the others."""
OPERATOR = LimitSet.Author.OPERATOR


@require_http_methods(["GET", "POST"])
@operator_page
def limits(request: HttpRequest) -> HttpResponse:
    """The defaults, and tenants with ceilings of their own; POST sets the defaults."""
    scope = LimitScope()
    figures = scope.sets().get(ceilings.DEFAULT, {})
    data = request.POST if request.method == "POST" else None
    form = LimitsForm(OPERATOR, figures, {}, data, kinds=TENANT_KINDS)
    if form.is_bound and form.is_valid():
        scope.store(OPERATOR, form.cleaned_data)
        messages.success(request, "Defaults saved. They apply within a second.")
        return redirect("operate_limits")
    others = _with_ceilings()
    context = {
        "form": form,
        "lines": [
            (kind.label, help_of(kind), shown(kind, figures.get(name)))
            for name, kind in TENANT_KINDS.items()
        ],
        "tenants": list(others[:MAX_LISTED]),
        "count": others.count(),
    }
    return render(request, "operate/limits.html", context, status=422 if form.errors else 200)


def _with_ceilings() -> TenantQuerySet:
    """Tenants for which the operator has set limits."""
    anything = Q(*((f"{name}__isnull", False) for name in TENANT_KINDS), _connector=Q.OR)
    ceilings = LimitSet.objects.filter(anything, author=OPERATOR, key=None, adapter=None)
    return Tenant.objects.filter(pk__in=ceilings.values("tenant")).order_by("name")
