"""For operators: who can sign in, and who is an operator."""

from __future__ import annotations

from typing import Any

from rest_framework import mixins
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from tenants.api.filters import UserFilter
from tenants.api.permissions import Operating
from tenants.api.serializers.accounts import UserSerializer
from tenants.api.strict_view import StrictView
from tenants.models import User


class Users(
    StrictView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.UpdateModelMixin,
    GenericViewSet[User],
):
    """People. They join by invitation; setting `active` to false signs one out at once. The last
    operator who can sign in stays one."""

    permission_classes = [Operating]
    queryset = User.objects.order_by("-pk").prefetch_related("memberships__tenant")
    serializer_class = UserSerializer
    filterset_class = UserFilter

    def perform_update(self, serializer: BaseSerializer[User]) -> None:
        given: dict[str, Any] = serializer.validated_data
        assert serializer.instance is not None
        serializer.instance.set_access(
            active=given.get("is_active"), operator=given.get("is_staff")
        )
