"""Webhooks of tenants and of the installation, and their deliveries."""

from __future__ import annotations

from typing import Any

from django.db import models
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.filters import DeliveryFilter
from tenants.api.permissions import Operating, TenantView
from tenants.api.serializers.webhooks import (
    DeliverySerializer,
    InstallationWebhookSerializer,
    NewInstallationWebhookSerializer,
    NewWebhookSerializer,
    WebhookSerializer,
)
from tenants.api.strict_view import StrictView
from tenants.models import Delivery, Target, Tenant, User
from tenants.notifications import testing
from tenants.permissions import Permission


class _Webhooks(
    StrictView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[Target],
):
    queryset = Target.objects.none()
    bodiless = ["rotate", "test"]
    filter_backends = []

    def of(self) -> Tenant | None:
        """The owning tenant; None: the installation."""
        raise NotImplementedError

    def get_queryset(self) -> models.QuerySet[Target]:
        return Target.objects.of(self.of()).select_related("created_by")

    def make(self, request: Request) -> Response:
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        by = request.user if isinstance(request.user, User) else None
        target = Target.objects.add(self.of(), by=by, **serializer.validated_data)
        return self._shown_once(target, status.HTTP_201_CREATED)

    def make_secret(self) -> Response:
        target = self.get_object()
        target.rotate()
        return self._shown_once(target, status.HTTP_200_OK)

    @extend_schema(description="Delete the webhook. Nothing more is sent to it.")
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    @extend_schema(request=None, responses=DeliverySerializer)
    def test(self, request: Request, pk: int) -> Response:
        """Send a signed `webhook.test` event to this webhook, once, and wait for its answer. In the
        state `waiting` no worker has sent it yet; ask for the delivery again."""
        sent = testing.outcome(self.get_object().test())
        return Response(DeliverySerializer(sent).data)

    def _shown_once(self, target: Target, code: int) -> Response:
        body = {**self.get_serializer(target).data, "secret": target.secrets[0]}
        return Response(body, code, headers={"Cache-Control": "no-store"})


class Webhooks(TenantView, _Webhooks):
    """URLs to which a tenant's events are posted as they happen, signed as in Standard Webhooks."""

    needs = dict.fromkeys(
        ("list", "retrieve", "create", "rotate", "test", "destroy"), Permission.EDIT_WEBHOOKS
    )
    serializer_class = WebhookSerializer

    def of(self) -> Tenant:
        return self.caller.tenant

    @extend_schema(responses={201: NewWebhookSerializer})
    def create(self, request: Request) -> Response:
        """Add a webhook. Its secret is shown only in this answer."""
        return self.make(request)

    @extend_schema(request=None, responses=NewWebhookSerializer)
    def rotate(self, request: Request, pk: int) -> Response:
        """Create a new secret. For 24 hours deliveries are also signed with the old one."""
        return self.make_secret()


class InstallationWebhooks(_Webhooks):
    """URLs to which the installation's events are posted, signed as in Standard Webhooks."""

    permission_classes = [Operating]
    serializer_class = InstallationWebhookSerializer

    def of(self) -> None:
        return None

    @extend_schema(responses={201: NewInstallationWebhookSerializer})
    def create(self, request: Request) -> Response:
        """Add a webhook. Its secret is shown only in this answer."""
        return self.make(request)

    @extend_schema(request=None, responses=NewInstallationWebhookSerializer)
    def rotate(self, request: Request, pk: int) -> Response:
        """Create a new secret. For 24 hours deliveries are also signed with the old one."""
        return self.make_secret()


class _Deliveries(
    StrictView, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Delivery]
):
    queryset = Delivery.objects.none()
    serializer_class = DeliverySerializer
    filterset_class = DeliveryFilter
    bodiless = ["replay"]

    def of(self) -> Tenant | None:
        """The owning tenant; None: the installation."""
        raise NotImplementedError

    def get_queryset(self) -> models.QuerySet[Delivery]:
        return Delivery.objects.to_webhooks(self.of())

    @extend_schema(request=None)
    def replay(self, request: Request, pk: int) -> Response:
        """Schedule it for delivery now, whatever its state."""
        self.get_object().replay()
        return Response(self.get_serializer(self.get_object()).data)


class Deliveries(TenantView, _Deliveries):
    """Deliveries to the tenant's webhooks in the last 30 days, the newest first."""

    needs = dict.fromkeys(("list", "retrieve", "replay"), Permission.EDIT_WEBHOOKS)

    def of(self) -> Tenant:
        return self.caller.tenant


class InstallationDeliveries(_Deliveries):
    """Deliveries to the installation's webhooks in the last 30 days, the newest first."""

    permission_classes = [Operating]

    def of(self) -> None:
        return None
