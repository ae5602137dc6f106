"""What a tenant used."""

from __future__ import annotations

from typing import cast

from django.db import models
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.filters import UsageFilter
from tenants.api.permissions import Permission, TenantView
from tenants.api.schema import Schema
from tenants.api.serializers import UsageLineSerializer
from tenants.models import UsageEvent
from tenants.models.usage import GROUPS, UsageEventQuerySet

BY = OpenApiParameter(
    "by",
    str,
    description=f"What to sum by, with commas between: {', '.join(GROUPS)}. Default: day.",
)


class Usage(TenantView, GenericAPIView[UsageEvent]):
    schema = Schema()
    needs = {"list": Permission.READ_USAGE}
    queryset = UsageEvent.objects.none()
    serializer_class = UsageLineSerializer
    filterset_class = UsageFilter
    action = "list"

    def get_queryset(self) -> models.QuerySet[UsageEvent]:
        return self.caller.tenant.usage.all()

    @extend_schema(
        parameters=[BY], responses=UsageLineSerializer(many=True), operation_id="usage_list"
    )
    def get(self, request: Request) -> Response:
        """Requests and tokens, summed; days and hours are UTC's."""
        by = request.query_params.get("by", "day").split(",")
        unknown = sorted(set(by) - GROUPS.keys())
        if unknown:
            allowed = ", ".join(GROUPS)
            raise ValidationError({"by": f"{unknown[0]!r} is not one of {allowed}."})
        events = cast(UsageEventQuerySet, self.filter_queryset(self.get_queryset()))
        page = self.paginate_queryset(events.sums(dict.fromkeys(by)))
        return self.get_paginated_response(self.get_serializer(page, many=True).data)
