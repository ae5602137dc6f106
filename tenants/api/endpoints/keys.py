"""API keys: make, change and revoke them."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import models
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from tenants.api.filters import KeyFilter
from tenants.api.permissions import TenantView
from tenants.api.serializers.keys import KeySerializer, NewKeySerializer
from tenants.errors import KeyRevoked
from tenants.models import ApiKey
from tenants.permissions import Permission


class KeyList(
    TenantView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.UpdateModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[ApiKey],
):
    """The tenant's keys. A developer can change only the keys that they made themselves."""

    needs = {
        "list": Permission.READ_KEYS,
        "retrieve": Permission.READ_KEYS,
        "create": Permission.EDIT_OWN_KEYS,
        "partial_update": Permission.EDIT_OWN_KEYS,
        "destroy": Permission.EDIT_OWN_KEYS,
    }
    queryset = ApiKey.objects.none()
    serializer_class = KeySerializer
    filterset_class = KeyFilter

    def get_queryset(self) -> models.QuerySet[ApiKey]:
        return self.caller.tenant.keys.with_limits().select_related("created_by")

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "caller": getattr(self, "caller", None)}

    @extend_schema(responses={201: NewKeySerializer})
    def create(self, request: Request) -> Response:
        """Create a key. It is shown only in this response."""
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        key, secret = ApiKey.objects.issue(
            self.caller.tenant, created_by=self.caller.user, **serializer.validated_data
        )
        body = {**self.get_serializer(key).data, "secret": secret}
        return Response(body, status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    def perform_update(self, serializer: BaseSerializer[ApiKey]) -> None:
        key = serializer.instance
        assert key is not None
        self._require_may_touch(key)
        if key.revoked_at is not None:
            raise KeyRevoked
        serializer.save()

    @extend_schema(description="Revoke the key permanently. Its running streams are ended.")
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: ApiKey) -> None:
        self._require_may_touch(instance)
        instance.revoke()

    def _require_may_touch(self, key: ApiKey) -> None:
        if key.of_playground:
            raise PermissionDenied(
                "Keys of the playground are managed by Lorikeet. Set limits on the key instead."
            )
        self.caller.require(self.caller.to_change(key))
