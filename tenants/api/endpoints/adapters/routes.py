"""Routes of a tenant."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as InvalidFields
from django.db import models
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import ValidationError
from rest_framework.fields import get_error_detail
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from tenants.api.endpoints.adapters.adapters import EDIT, READ
from tenants.api.permissions import TenantView
from tenants.api.serializers.routes import RouteFitRequestSerializer, RouteSerializer
from tenants.models import Route, User
from tenants.routes.jobs import fit_later


class Routes(
    TenantView,
    mixins.ListModelMixin,
    mixins.CreateModelMixin,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[Route],
):
    """Names that requests use as a model, for which the cheapest sufficient of several models
    answers. A new route is off: its last option answers until it is fitted."""

    needs = {
        "list": READ, "retrieve": READ, "create": EDIT, "destroy": EDIT, "fit": EDIT,
        "turn_on": EDIT, "turn_off": EDIT,
    }  # fmt: skip
    queryset = Route.objects.none()
    serializer_class = RouteSerializer
    filter_backends = []
    lookup_field = "name"
    bodiless = ["turn_on", "turn_off"]
    further_errors = [409]

    def get_queryset(self) -> models.QuerySet[Route]:
        return self.caller.tenant.routes.select_related("created_by").defer("packed")

    def perform_create(self, serializer: BaseSerializer[Route]) -> None:
        by = self.request.user if isinstance(self.request.user, User) else None
        fields = serializer.validated_data
        try:
            serializer.instance = Route.objects.add(self.caller.tenant, by, **fields)
        except InvalidFields as error:
            raise ValidationError(get_error_detail(error)) from error

    @extend_schema(description="Delete the route. Requests that name it are refused from now on.")
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    @extend_schema(request=RouteFitRequestSerializer, responses={202: RouteSerializer})
    def fit(self, request: Request, name: str) -> Response:
        """Fit the route, in the background, on the newest completed run of the eval on each option.
        It is turned on if it gains, and off otherwise; the report says why."""
        asked = RouteFitRequestSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        route, id = self.get_object(), asked.validated_data["eval"]
        eval = self.caller.tenant.evals.filter(pk=id).first()
        if eval is None:
            raise ValidationError({"eval": f"There is no eval {id}."})
        try:
            fit_later(route, eval)
        except InvalidFields as error:
            raise ValidationError(get_error_detail(error)) from error
        return Response(self.get_serializer(route).data, status.HTTP_202_ACCEPTED)

    @extend_schema(request=None, responses=RouteSerializer)
    def turn_on(self, request: Request, name: str) -> Response:
        """Let the route choose by its last fit, if that gains."""
        route = self.get_object()
        route.turn_on()
        return Response(self.get_serializer(route).data)

    @extend_schema(request=None, responses=RouteSerializer)
    def turn_off(self, request: Request, name: str) -> Response:
        """Have the best single option answer all requests."""
        route = self.get_object()
        route.turn_off()
        return Response(self.get_serializer(route).data)
