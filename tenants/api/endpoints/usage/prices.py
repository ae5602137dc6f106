"""Prices of tokens, each from a given time on. Operators set them; tenants see those that apply to
them."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, models, transaction
from django.db.models import Q
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from tenants.api.filters import PriceFilter
from tenants.api.permissions import Allowed, TenantView
from tenants.api.serializers.usage import PriceSerializer
from tenants.models import Price, User
from tenants.permissions import Caller, Permission

READ, SET = Permission.READ_OWN_USAGE, Permission.OPERATE


class AllowedOrOperator(Allowed):
    """As `Allowed`; an operator need not name a tenant, since a base model has none."""

    def has_permission(self, request: Request, view: Any) -> bool:
        user = request.user
        operator = isinstance(user, User) and user.is_active and user.is_staff
        if operator and not request.query_params.get("tenant"):
            return True
        return super().has_permission(request, view)


class Prices(
    TenantView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[Price],
):
    """Prices of base models and of the tenant's adapters, the latest first.

    A price is in force until a later one for the same model or adapter; an adapter's price takes
    precedence over its base model's. An operator who names no tenant sees all of them.
    """

    permission_classes = [AllowedOrOperator]
    needs = {"list": READ, "retrieve": READ, "create": SET, "destroy": SET}
    queryset = Price.objects.none()
    serializer_class = PriceSerializer
    filterset_class = PriceFilter

    def get_queryset(self) -> models.QuerySet[Price]:
        prices = Price.objects.shown().select_related("base_model", "adapter__tenant")
        prices = prices.order_by("-starts_at", "-id")
        if self._caller is None:
            return prices
        own = Q(adapter__tenant=self._caller.tenant)
        return prices.filter(Q(base_model__isnull=False) | own)

    @property
    def _caller(self) -> Caller | None:
        return getattr(self, "caller", None)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "caller": self._caller}

    def perform_create(self, serializer: BaseSerializer[Price]) -> None:
        try:
            with transaction.atomic():
                serializer.save()
        except IntegrityError as error:
            raise ValidationError(
                {"starts_at": "There is already a price that starts at this time."}
            ) from error

    @extend_schema(description="Withdraw a price that is not yet in force.")
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: Price) -> None:
        instance.withdraw()
