"""Limits: what the operator set, what the tenant set below that, and what is in force."""

from __future__ import annotations

from typing import Any

from django.db import models, transaction
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.permissions import Operating, TenantView
from tenants.api.serializers.strict import StrictMixin
from tenants.api.strict_view import StrictView
from tenants.errors import KeyRevoked
from tenants.limits import ceilings
from tenants.limits.ceilings import Figures
from tenants.limits.kinds import KINDS, TENANT_KINDS
from tenants.models import Adapter, ApiKey, LimitScope, LimitSet
from tenants.permissions import Permission

OPERATOR, TENANT = LimitSet.Author.OPERATOR, LimitSet.Author.TENANT


class FiguresSerializer(StrictMixin, serializers.ModelSerializer[LimitSet]):
    """Limits by name; null: no limit. Costs are in micro-units (millionths) of the currency."""

    class Meta:
        model = LimitSet
        fields = tuple(KINDS)


class TenantFiguresSerializer(FiguresSerializer):
    """As for keys and adapters, with the limit of a tenant's fine-tuning."""

    class Meta(FiguresSerializer.Meta):
        fields = tuple(TENANT_KINDS)


class LimitsSerializer(StrictMixin, serializers.Serializer[Any]):
    """The limits of one scope: the whole tenant, one key or one adapter.

    The limits of its tenant, its key and its adapter all apply to a request.
    """

    operator = FiguresSerializer(required=False, help_text="Only operators can set these.")
    own = FiguresSerializer(required=False, help_text="The tenant's admins can set these.")
    ceiling = FiguresSerializer(
        read_only=True,
        help_text=(
            "Upper bounds of `own`: the operator's limits or, for the whole tenant, the "
            "platform's default. For a key or an adapter the tenant's limits apply as "
            "well."
        ),
    )
    in_force = FiguresSerializer(
        read_only=True, help_text="The lower of the operator's limit (or the default) and `own`."
    )


class TenantLimitsSerializer(LimitsSerializer):
    """The limits of a whole tenant."""

    operator = TenantFiguresSerializer(required=False, help_text="Only operators can set these.")
    own = TenantFiguresSerializer(required=False, help_text="The tenant's admins can set these.")
    ceiling = TenantFiguresSerializer(
        read_only=True,
        help_text="Upper bounds of `own`: the operator's limits or the platform's default.",
    )
    in_force = TenantFiguresSerializer(
        read_only=True, help_text="The lower of the operator's limit (or the default) and `own`."
    )


def _require_within(own: Figures, ceiling: Figures) -> None:
    beyond = ceilings.beyond(own, ceiling)
    if beyond:
        messages = {
            name: f"{own[name]} is above the ceiling of {most}." for name, most in beyond.items()
        }
        raise ValidationError({"own": messages})


class LimitsList(TenantView, GenericViewSet[Any]):
    """The limits of the whole tenant."""

    needs = {
        "retrieve": Permission.READ_LIMITS,
        "update": Permission.EDIT_LIMITS,
        "partial_update": Permission.EDIT_LIMITS,
    }
    queryset: models.QuerySet[Any] = LimitSet.objects.none()
    serializer_class: type[LimitsSerializer] = TenantLimitsSerializer

    def scope(self) -> LimitScope:
        """The scope that the URL names."""
        return LimitScope(self.caller.tenant)

    def retrieve(self, request: Request, **named: Any) -> Response:
        """The limits in force, and what the operator and the tenant set."""
        return self._shown(self.scope())

    def update(self, request: Request, **named: Any) -> Response:
        """Replace `own`, `operator` or both: an omitted limit is cleared."""
        return self._store(request, clear=True)

    def partial_update(self, request: Request, **named: Any) -> Response:
        """Change limits of `own`, `operator` or both: an omitted limit is unchanged."""
        return self._store(request, clear=False)

    def _store(self, request: Request, *, clear: bool) -> Response:
        scope = self.scope()  # first: a missing object is a 404 whatever the body is
        left_out: Figures = dict.fromkeys(scope.kinds) if clear else {}
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        with transaction.atomic():
            if "operator" in given:
                self.caller.require(Permission.OPERATE)
                scope.store(OPERATOR, {**left_out, **given["operator"]})
            if "own" in given:
                _require_within(given["own"], scope.ceiling())
                scope.store(TENANT, {**left_out, **given["own"]})
        return self._shown(scope)

    def _shown(self, scope: LimitScope) -> Response:
        sets = scope.sets()
        body = {
            "operator": ceilings.least(sets.get(ceilings.OPERATOR, {}), kinds=scope.kinds),
            "own": ceilings.least(sets.get(ceilings.TENANT, {}), kinds=scope.kinds),
            "ceiling": scope.ceiling(),
            "in_force": ceilings.in_force(sets, scope.kinds),
        }
        return Response(self.get_serializer(body).data)


class KeyLimits(LimitsList):
    """The limits of one key."""

    queryset = ApiKey.objects.none()
    serializer_class = LimitsSerializer

    def scope(self) -> LimitScope:
        key = get_object_or_404(self.caller.tenant.keys.with_limits(), pk=self.kwargs["pk"])
        if key.revoked_at is not None and self.action != "retrieve":
            raise KeyRevoked
        return LimitScope(self.caller.tenant, key=key)


class AdapterLimits(LimitsList):
    """The limits of one adapter, over all keys that use it."""

    queryset = Adapter.objects.none()
    serializer_class = LimitsSerializer
    lookup_field = "name"

    def scope(self) -> LimitScope:
        adapter = get_object_or_404(self.caller.tenant.adapters, name=self.kwargs["name"])
        return LimitScope(self.caller.tenant, adapter=adapter)


@extend_schema(responses=TenantFiguresSerializer)
class DefaultLimits(StrictView, GenericViewSet[LimitSet]):
    """The platform's default, for operators: the ceiling of every tenant without one of its own."""

    permission_classes = [Operating]
    queryset = LimitSet.objects.none()
    serializer_class = TenantFiguresSerializer

    def retrieve(self, request: Request) -> Response:
        """The default limits."""
        default = LimitScope().sets().get(ceilings.DEFAULT, {})
        return Response(self.get_serializer(ceilings.least(default, kinds=TENANT_KINDS)).data)

    def update(self, request: Request) -> Response:
        """Replace the default limits: an omitted one is cleared."""
        return self._store(request, dict.fromkeys(TENANT_KINDS))

    def partial_update(self, request: Request) -> Response:
        """Change default limits: an omitted one is unchanged."""
        return self._store(request, {})

    def _store(self, request: Request, left_out: Figures) -> Response:
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        LimitScope().store(OPERATOR, {**left_out, **asked.validated_data})
        return self.retrieve(request)
