"""The connected engines and their base models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from tenants.api import second_factor
from tenants.api.authentication import KeyHolder
from tenants.api.permissions import Operating
from tenants.api.serializers.fleet import BaseModelSerializer, EnginesSerializer
from tenants.api.strict_view import StrictView
from tenants.fleet.gateways import gateways
from tenants.models import BaseModel, Tenant
from tenants.permissions import TABLE, Permission

OPERATORS_FIELDS = {
    "credential", "degraded", "profile", "proof", "running", "waiting", "queued", "kv_usage",
    "prompt_tokens", "cached_tokens", "completion_tokens", "failures", "last_failure",
    "refused_suspects",
}  # fmt: skip


class MaySeeEngines(BasePermission):
    """Admits signed-in users, and keys that may see adapters."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        user = request.user
        if isinstance(user, KeyHolder):
            return not TABLE[Permission.READ_ADAPTERS][1].isdisjoint(user.key.scopes)
        return bool(user.is_authenticated)


def shown_to(slugs: set[str], engine: dict[str, Any]) -> dict[str, Any]:
    """The engine without figures over all tenants and without other tenants' adapters."""
    resident = [name for name in engine["resident_adapters"] if name.split("/")[0] in slugs]
    shown = {name: value for name, value in engine.items() if name not in OPERATORS_FIELDS}
    return shown | {"resident_adapters": resident}


class EngineList(StrictView):
    permission_classes = [MaySeeEngines]

    @extend_schema(responses=EnginesSerializer, operation_id="engines_list")
    def get(self, request: Request) -> Response:
        """The engines that are connected to any gateway. For operators it also lists engines
        that could not start in the last hour, and the gateways that did not answer, whose engines
        may be missing."""
        fleet, user = gateways().fleet(), request.user
        engines = fleet.engines
        further: dict[str, Any] = {}
        if isinstance(user, KeyHolder):
            engines = [shown_to({user.key.tenant.slug}, engine) for engine in engines]
        elif not user.is_staff:
            found = second_factor.opened(request._request, Tenant.objects.visible_to(user))
            slugs = set(found.values_list("slug", flat=True))
            engines = [shown_to(slugs, engine) for engine in engines]
        else:
            failures = [msgspec.to_builtins(one) for one in fleet.start_failures]
            further = {"start_failures": failures, "silent_gateways": fleet.silent}
        return Response({"count": len(engines), "results": engines, **further})


class BaseModels(
    StrictView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.UpdateModelMixin,
    GenericViewSet[BaseModel],
):
    """The models that engines serve and adapters are based on."""

    permission_classes = [MaySeeEngines]
    queryset = BaseModel.objects.all()
    serializer_class = BaseModelSerializer
    filter_backends = []
    lookup_field = "name"

    def get_permissions(self) -> Sequence[Any]:
        return [Operating()] if self.request.method == "PATCH" else super().get_permissions()

    @extend_schema(
        description=(
            "Change the base model's default parameters and how its new revisions are introduced."
        )
    )
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().partial_update(request, *args, **kwargs)
