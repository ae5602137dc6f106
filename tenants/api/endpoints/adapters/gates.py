"""What an alias requires of a version: a pass rate in an eval."""

from __future__ import annotations

from django.core.exceptions import ValidationError as InvalidFields
from django.db import models
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.exceptions import ValidationError
from rest_framework.fields import get_error_detail
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.endpoints.adapters.adapters import EDIT, READ, AdapterPart
from tenants.api.serializers.adapters import GateRequestSerializer, GateSerializer
from tenants.models import PromotionGate


class AliasGate(
    AdapterPart,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[PromotionGate],
):
    """What an alias requires before it may point at a version. It need not exist yet. A roll back
    requires nothing."""

    needs = {"retrieve": READ, "require": EDIT, "destroy": EDIT}
    queryset = PromotionGate.objects.none()
    serializer_class = GateSerializer
    filter_backends = []
    lookup_field = "alias"

    def get_queryset(self) -> models.QuerySet[PromotionGate]:
        return self.adapter().gates.select_related("eval")

    @extend_schema(request=GateRequestSerializer, responses=GateSerializer)
    def require(self, request: Request, name: str, alias: str) -> Response:
        """Require a pass rate in an eval, in place of what the alias required before."""
        asked = GateRequestSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        adapter, id = self.adapter(), asked.validated_data["eval"]
        eval = self.caller.tenant.evals.filter(pk=id).first()
        if eval is None:
            raise ValidationError({"eval": f"There is no eval {id}."})
        rate = asked.validated_data["min_pass_rate"]
        try:
            gate = PromotionGate.objects.put(adapter, alias, eval, rate)
        except InvalidFields as error:
            raise ValidationError(get_error_detail(error)) from error
        return Response(self.get_serializer(gate).data)
