"""For operators: credentials of engines, and quarantined usage that engines reported."""

from __future__ import annotations

from typing import Any

from django.db import models
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.filters import CredentialFilter, QuarantineFilter
from tenants.api.permissions import Operating
from tenants.api.serializers.fleet import (
    CredentialSerializer,
    NewCredentialSerializer,
    QuarantinedSerializer,
)
from tenants.api.strict_view import StrictView
from tenants.billing import decisions
from tenants.models import EngineCredential, QuarantinedEntry, User
from tenants.models.audit import actor_of


class EngineCredentials(
    StrictView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[EngineCredential],
):
    """Credentials of engines. An engine can only bill, and fetch the adapters of, requests that
    were dispatched to its own credential."""

    permission_classes = [Operating]
    queryset = EngineCredential.objects.select_related("created_by")
    serializer_class = CredentialSerializer
    filterset_class = CredentialFilter
    bodiless = ["rotate"]

    @extend_schema(responses={201: NewCredentialSerializer})
    def create(self, request: Request) -> Response:
        """Create a credential. It is shown only in this response."""
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        assert isinstance(request.user, User)
        credential, secret = EngineCredential.objects.issue(
            created_by=request.user, **serializer.validated_data
        )
        return self._shown_once(credential, secret, status.HTTP_201_CREATED)

    @extend_schema(request=None, responses=NewCredentialSerializer)
    def rotate(self, request: Request, pk: int) -> Response:
        """Replace the secret; the old one is invalid at once."""
        credential = self.get_object()
        return self._shown_once(credential, credential.rotate(), status.HTTP_200_OK)

    @extend_schema(
        description="Revoke the credential permanently. Its engine is disconnected at once."
    )
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: EngineCredential) -> None:
        instance.revoke()

    def _shown_once(self, credential: EngineCredential, secret: str, code: int) -> Response:
        body = {**self.get_serializer(credential).data, "secret": secret}
        return Response(body, code, headers={"Cache-Control": "no-store"})


class Quarantine(
    StrictView, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[QuarantinedEntry]
):
    """Usage that engines reported but that matches nothing a gateway dispatched to them. It is not
    billed unless an operator decides so."""

    permission_classes = [Operating]
    queryset: models.QuerySet[QuarantinedEntry] = QuarantinedEntry.objects.select_related(
        "credential", "decided_by"
    )
    serializer_class = QuarantinedSerializer
    filterset_class = QuarantineFilter
    bodiless = ["bill", "dismiss"]

    @extend_schema(request=None)
    def bill(self, request: Request, pk: int) -> Response:
        """Bill the entry after all, to the tenant and key that it names."""
        entry = self.get_object()
        assert isinstance(request.user, User)
        decisions.bill(entry, request.user, actor_of(request))
        return self._shown()

    @extend_schema(request=None)
    def dismiss(self, request: Request, pk: int) -> Response:
        """Dismiss the entry permanently, so that it is not billed."""
        entry = self.get_object()
        assert isinstance(request.user, User)
        decisions.dismiss(entry, request.user)
        return self._shown()

    def _shown(self) -> Response:
        return Response(self.get_serializer(self.get_object()).data)
