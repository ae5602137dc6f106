"""Tenants and their members."""

from __future__ import annotations

from typing import Any

from django.db import models, transaction
from rest_framework import mixins
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from tenants.api import second_factor
from tenants.api.authentication import KeyHolder
from tenants.api.filters import MemberFilter, TenantFilter
from tenants.api.permissions import TenantView
from tenants.api.serializers.accounts import MemberSerializer, OneTenantSerializer, TenantSerializer
from tenants.api.strict_view import StrictView
from tenants.models import Membership, Role, Tenant
from tenants.permissions import Permission

OPERATORS_FIELDS = {"status", "weight", "max_stored_bytes", "max_versions"}


class Tenants(StrictView, mixins.ListModelMixin, mixins.CreateModelMixin, GenericViewSet[Tenant]):
    """The caller's tenants; an operator sees all of them but internal ones, as which the
    installation checks itself. Only operators create tenants."""

    permission_classes = [IsAuthenticated]
    queryset = Tenant.objects.none()
    serializer_class = TenantSerializer
    filterset_class = TenantFilter

    def get_queryset(self) -> models.QuerySet[Tenant]:
        user = self.request.user
        if isinstance(user, KeyHolder):
            return Tenant.objects.filter(pk=user.key.tenant_id)
        return Tenant.objects.visible_to(user).customers()

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if not request.user.is_staff:
            raise PermissionDenied("Only operators can create tenants.", "insufficient_permissions")
        return super().create(request, *args, **kwargs)


class OneTenant(
    TenantView, mixins.RetrieveModelMixin, mixins.UpdateModelMixin, GenericViewSet[Tenant]
):
    """One tenant. Only operators change its status, weight and quota, and only owners and operators
    whether it requires a second factor."""

    takes_tenant = False  # the tenant is in the URL
    needs = {"retrieve": Permission.READ_TENANT, "partial_update": Permission.EDIT_TENANT}
    queryset = Tenant.objects.none()
    serializer_class = OneTenantSerializer
    lookup_field = "slug"

    def get_object(self) -> Tenant:
        return self.caller.tenant

    def perform_update(self, serializer: BaseSerializer[Tenant]) -> None:
        if OPERATORS_FIELDS & serializer.validated_data.keys():
            self.caller.require(Permission.OPERATE)
        if "second_factor_required" in serializer.validated_data:
            self.caller.require(Permission.EDIT_SIGN_IN)
            required = serializer.validated_data["second_factor_required"]
            second_factor.require_own(self.request._request, required=required)
        status = serializer.validated_data.pop("status", None)
        with transaction.atomic():
            tenant = serializer.save()
            if status is not None:
                tenant.set_status(status)


class Members(
    TenantView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.UpdateModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[Membership],
):
    """The tenant's members and their roles. New members join by invitation; only owners make and
    remove owners."""

    needs = {
        "list": Permission.READ_MEMBERS,
        "retrieve": Permission.READ_MEMBERS,
        "partial_update": Permission.EDIT_MEMBERS,
        "destroy": Permission.EDIT_MEMBERS,
    }
    queryset = Membership.objects.none()
    serializer_class = MemberSerializer
    filterset_class = MemberFilter

    def get_queryset(self) -> models.QuerySet[Membership]:
        return self.caller.tenant.memberships.select_related("user")

    def perform_update(self, serializer: BaseSerializer[Membership]) -> None:
        member = serializer.instance
        assert member is not None
        role = serializer.validated_data.get("role", Role(member.role))
        self._require_may_touch(Role(member.role), role)
        member.change_role(role)

    def perform_destroy(self, instance: Membership) -> None:
        self._require_may_touch(Role(instance.role))
        instance.remove()

    def _require_may_touch(self, *roles: Role) -> None:
        if Role.OWNER in roles:
            self.caller.require(Permission.EDIT_OWNERS)
