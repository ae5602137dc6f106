"""Alert rules of a tenant."""

from __future__ import annotations

from typing import Any

from django.db import models
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from tenants.api.permissions import TenantView
from tenants.api.serializers.alerts import AlertRuleSerializer
from tenants.models import AlertRule, User
from tenants.permissions import Permission


class AlertRules(
    TenantView,
    mixins.ListModelMixin,
    mixins.CreateModelMixin,
    mixins.RetrieveModelMixin,
    mixins.UpdateModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[AlertRule],
):
    """What raises an alert: a share of failed and refused requests, or a TTFT p95, in the last
    minutes. Changing a rule ends its alert, without an event."""

    needs = dict.fromkeys(
        ("list", "retrieve", "create", "partial_update", "destroy"), Permission.EDIT_ALERTS
    )
    queryset = AlertRule.objects.none()
    serializer_class = AlertRuleSerializer
    filter_backends = []

    def get_queryset(self) -> models.QuerySet[AlertRule]:
        return self.caller.tenant.alert_rules.select_related("created_by")

    def perform_create(self, serializer: BaseSerializer[AlertRule]) -> None:
        by = self.request.user if isinstance(self.request.user, User) else None
        fields = serializer.validated_data
        serializer.instance = AlertRule.objects.add(self.caller.tenant, by, **fields)

    @extend_schema(description="Delete the rule. An alert that is raised ends without an event.")
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)
