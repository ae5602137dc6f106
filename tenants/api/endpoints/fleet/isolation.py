"""For operators: whether tenants are isolated on each base model's engines."""

from __future__ import annotations

from django.db import models
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants import isolation
from tenants.api.permissions import Operating
from tenants.api.serializers.fleet import IsolationCheckSerializer
from tenants.api.strict_view import StrictView
from tenants.models import IsolationCheck


class IsolationChecks(StrictView, mixins.ListModelMixin, GenericViewSet[IsolationCheck]):
    """The last check of each base model."""

    permission_classes = [Operating]
    queryset: models.QuerySet[IsolationCheck] = IsolationCheck.objects.latest_of_each()
    serializer_class = IsolationCheckSerializer
    bodiless = ["check"]

    @extend_schema(request=None, responses={202: None})
    def check(self, request: Request) -> Response:
        """Have a worker check all base models now, unless it is about to."""
        isolation.check_soon()
        return Response(status=status.HTTP_202_ACCEPTED)
