"""Filters of lists."""

from __future__ import annotations

from typing import Any

from django.db import models
from django_filters import rest_framework as filters
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field

from tenants.models import (
    ApiKey,
    Lane,
    QuarantinedEntry,
    Role,
    RolloutState,
    Scope,
    Standing,
    State,
    Tenant,
)
from tenants.models.audit import ACTIONS, SUBJECTS, AuditEntryQuerySet
from tenants.models.fleet.quarantine import Decision
from tenants.models.notifications import DeliveryState, NotificationKind
from tenants.models.usage.outcomes import BY_OUTCOME


class FilterSet(filters.FilterSet):  # type: ignore[misc]
    """Base of all filter sets: only this subclass of the untyped library needs a `type: ignore`."""


@extend_schema_field(OpenApiTypes.BOOL)
class YesNoFilter(filters.TypedChoiceFilter):  # type: ignore[misc]
    """`true` or `false`. The library's own filter treats any other value as no filter."""

    def __init__(self, *args: Any, **options: Any) -> None:
        words = [(word, word) for word in ("true", "false", "True", "False")]
        super().__init__(*args, choices=words, coerce=_is_true, **options)


def _is_true(word: str) -> bool:
    return word.lower() == "true"


class TenantFilter(FilterSet):
    name = filters.CharFilter(lookup_expr="icontains")
    status = filters.ChoiceFilter(choices=Tenant.Status.choices)


class MemberFilter(FilterSet):
    role = filters.ChoiceFilter(choices=Role.choices)
    username = filters.CharFilter("user__username", lookup_expr="icontains")


class InvitationFilter(FilterSet):
    role = filters.ChoiceFilter(choices=Role.choices)


class KeyFilter(FilterSet):
    name = filters.CharFilter(lookup_expr="icontains")
    scope = filters.ChoiceFilter(method="having_scope", choices=Scope.choices)
    lane = filters.ChoiceFilter(choices=Lane.choices)
    revoked = YesNoFilter("revoked_at", lookup_expr="isnull", exclude=True)

    def having_scope(
        self, keys: models.QuerySet[ApiKey], name: str, value: str
    ) -> models.QuerySet[ApiKey]:
        return keys.filter(scopes__contains=[value])


class AdapterFilter(FilterSet):
    name = filters.CharFilter(lookup_expr="icontains")
    base_model = filters.CharFilter("base_model__name")
    pinned = YesNoFilter()


class VersionFilter(FilterSet):
    state = filters.ChoiceFilter(choices=State.choices)
    digest = filters.CharFilter(lookup_expr="startswith")


class AuditFilterSet(FilterSet):
    kind = filters.ChoiceFilter(choices=list(SUBJECTS.items()), help_text="What was changed.")
    action = filters.ChoiceFilter(choices=[(one, one) for one in ACTIONS])
    actor = filters.CharFilter(
        method="made_by", help_text="A part of the actor's name, or `user`, `key` or `system`."
    )
    start = filters.IsoDateTimeFilter("at", lookup_expr="gte")
    end = filters.IsoDateTimeFilter("at", lookup_expr="lt", help_text="Exclusive.")

    def made_by(self, entries: AuditEntryQuerySet, name: str, value: str) -> AuditEntryQuerySet:
        return entries.by(value)


class InstallationAuditFilterSet(AuditFilterSet):
    tenant = filters.CharFilter("tenant__slug")


class UserFilter(FilterSet):
    username = filters.CharFilter(lookup_expr="icontains")
    email = filters.CharFilter(lookup_expr="icontains")
    operator = YesNoFilter("is_staff")
    active = YesNoFilter("is_active")


class CredentialFilter(FilterSet):
    name = filters.CharFilter(lookup_expr="icontains")
    revoked = YesNoFilter("revoked_at", lookup_expr="isnull", exclude=True)


class QuarantineFilter(FilterSet):
    status = filters.ChoiceFilter(choices=Decision.choices)
    reason = filters.ChoiceFilter(choices=list(QuarantinedEntry.REASONS.items()))
    engine_id = filters.CharFilter()
    request_id = filters.CharFilter()


class DeliveryFilter(FilterSet):
    webhook = extend_schema_field(OpenApiTypes.INT)(
        filters.NumberFilter("target_id", decimal_places=0)
    )
    event = filters.ChoiceFilter(field_name="notification__kind", choices=NotificationKind.choices)
    state = filters.ChoiceFilter(choices=DeliveryState.choices)


class RevisionFilter(FilterSet):
    base_model = filters.CharFilter("base_model__name")
    standing = filters.ChoiceFilter(choices=Standing.choices)


class RolloutFilter(FilterSet):
    base_model = filters.CharFilter("base_model__name")
    state = filters.ChoiceFilter(choices=RolloutState.choices)


class UsageFilter(FilterSet):
    key = extend_schema_field(OpenApiTypes.INT)(filters.NumberFilter("key_id", decimal_places=0))
    adapter = filters.CharFilter(help_text="An adapter's name, without a version.")
    model = filters.CharFilter(help_text="The model's name as requests had it.")
    base_model = filters.CharFilter()


class MetricsFilter(FilterSet):
    key = extend_schema_field(OpenApiTypes.INT)(filters.NumberFilter("key_id", decimal_places=0))
    adapter = filters.CharFilter(help_text="An adapter's name, without a version.")
    base_model = filters.CharFilter()
    outcome = filters.ChoiceFilter(choices=[(name, name) for name in BY_OUTCOME])
    code = filters.CharFilter(help_text="A finish reason, or an error's code.")


class PriceFilter(FilterSet):
    base_model = filters.CharFilter("base_model__name")
    adapter = filters.CharFilter("adapter__name")
