"""Usage and cost of all customers together, by tenant or model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from frontend.pages import operator_page
from frontend.views.operate.overview import used_by_customers
from frontend.views.usage import Question, UsageForm, page
from tenants.models import Tenant

BY = {"tenant": "tenant", "base_model": "base model", "model": "model"}


@require_GET
@operator_page
def usage(request: HttpRequest) -> HttpResponse:
    """As a tenant's page; without the platform's own tenants."""
    form = UsageForm(request.GET, BY)
    asked = Question.of(form, timezone.now())
    return page(request, form, asked, used_by_customers(), _names, {}, "operate/usage.html")


def _names(by: str, found: Sequence[Any]) -> Mapping[Any, str]:
    if by != "tenant":
        return {one: one for one in found}
    return {pk: tenant.name for pk, tenant in Tenant.objects.in_bulk(found).items()}
