"""Invitations: the only way to become a member of a tenant."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.filters import InvitationFilter
from tenants.api.permissions import TenantView
from tenants.api.serializers.accounts import InvitationSerializer, NewInvitationSerializer
from tenants.models import Invitation, Role
from tenants.permissions import Permission


class Invitations(
    TenantView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[Invitation],
):
    """Invitations that can still be accepted, each by one person. Only owners invite owners."""

    needs = dict.fromkeys(("list", "retrieve", "create", "destroy"), Permission.EDIT_MEMBERS)
    queryset = Invitation.objects.none()
    serializer_class = InvitationSerializer
    filterset_class = InvitationFilter

    def get_queryset(self) -> models.QuerySet[Invitation]:
        return self.caller.tenant.invitations.open().select_related("created_by")

    @extend_schema(responses={201: NewInvitationSerializer})
    def create(self, request: Request) -> Response:
        """Invite a person. The link is shown only in this answer: a person who opens it, and signs
        in or creates an account, can join."""
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        role = Role(serializer.validated_data["role"])
        self._require_may_touch(role)
        invitation, token = Invitation.objects.invite(
            self.caller.tenant,
            role=role,
            note=serializer.validated_data.get("note", ""),
            by=self.caller.user,
        )
        url = request.build_absolute_uri(reverse("invitation", args=[token]))
        body = {**self.get_serializer(invitation).data, "url": url}
        return Response(body, status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(description="Withdraw the invitation. Its link stops working.")
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: Invitation) -> None:
        self._require_may_touch(Role(instance.role))
        instance.withdraw()

    def _require_may_touch(self, role: Role) -> None:
        if role == Role.OWNER:
            self.caller.require(Permission.EDIT_OWNERS)
