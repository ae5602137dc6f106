"""What lists can be narrowed by."""

from __future__ import annotations

from django.db import models
from django_filters import rest_framework as filters

from tenants.models import ApiKey, Role, Scope, State, Tenant, UsageEvent
from tenants.models.usage import ADAPTER


class FilterSet(filters.FilterSet):  # type: ignore[misc]
    """The library has no types."""


class TenantFilter(FilterSet):
    name = filters.CharFilter(lookup_expr="icontains")
    status = filters.ChoiceFilter(choices=Tenant.Status.choices)


class MemberFilter(FilterSet):
    role = filters.ChoiceFilter(choices=Role.choices)
    username = filters.CharFilter("user__username", lookup_expr="icontains")


class KeyFilter(FilterSet):
    name = filters.CharFilter(lookup_expr="icontains")
    scope = filters.ChoiceFilter(method="having_scope", choices=Scope.choices)
    revoked = filters.BooleanFilter("revoked_at", lookup_expr="isnull", exclude=True)

    def having_scope(
        self, keys: models.QuerySet[ApiKey], name: str, value: str
    ) -> models.QuerySet[ApiKey]:
        return keys.filter(scopes__contains=[value])


class AdapterFilter(FilterSet):
    name = filters.CharFilter(lookup_expr="icontains")
    base_model = filters.CharFilter("base_model__name")


class VersionFilter(FilterSet):
    state = filters.ChoiceFilter(choices=State.choices)
    digest = filters.CharFilter(lookup_expr="startswith")


class UsageFilter(FilterSet):
    vars()["from"] = filters.IsoDateTimeFilter(  # the parameter's name is a keyword of Python
        "started_at", lookup_expr="gte", help_text="Requests that started then or later."
    )
    to = filters.IsoDateTimeFilter(
        "started_at", lookup_expr="lt", help_text="Requests that started before."
    )
    key = filters.NumberFilter("key_id")
    adapter = filters.CharFilter(method="of_adapter")
    model = filters.CharFilter()

    def of_adapter(
        self, events: models.QuerySet[UsageEvent], name: str, value: str
    ) -> models.QuerySet[UsageEvent]:
        return events.alias(of_adapter=ADAPTER).filter(of_adapter=value)
