"""Identifies callers of the management API, and checks them against `tenants.permissions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import Http404
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.api import second_factor
from tenants.api.authentication import KeyHolder
from tenants.api.strict_view import StrictView
from tenants.models import ApiKey, Tenant, User
from tenants.permissions import Caller, Permission


def caller(request: Request, slug: str | None = None) -> Caller:
    """The caller, and the tenant of that slug, else that of `?tenant=`, else the caller's only one.

    Raises:
        PermissionDenied: the tenant requires a second factor, which the caller's session lacks.
        Http404: the tenant does not exist or is not the caller's; the two are not distinguished.
        ValidationError: it is not clear which tenant is meant.
    """
    slug = slug or request.query_params.get("tenant")
    if isinstance(request.user, KeyHolder):
        return _key_holder(request.user.key, slug)
    user = request.user
    assert isinstance(user, User)
    tenants = Tenant.objects.visible_to(user)
    tenant = tenants.filter(slug=slug).first() if slug else _only(tenants)
    if tenant is None:
        raise Http404
    if second_factor.closes(request._request, tenant):
        raise PermissionDenied(second_factor.refusal(tenant), "second_factor_required")
    return Caller.of_member(user, tenant)


def _key_holder(key: ApiKey, slug: str | None) -> Caller:
    if slug not in (None, "", key.tenant.slug):
        raise Http404
    return Caller(key.tenant, key=key)


def _only(tenants: Any) -> Tenant:
    found: list[Tenant] = list(tenants[:6])
    if len(found) == 1:
        return found[0]
    names = ", ".join(tenant.slug for tenant in found[:5]) + (", ..." if len(found) > 5 else "")
    message = (
        f"You are a member of several tenants. Set `tenant` to one of {names}."
        if found
        else "You are not a member of any tenant."
    )
    raise ValidationError({"tenant": message})


class Allowed(BasePermission):
    """Requires the permission that the view's `needs` names for the action."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not request.user.is_authenticated:
            return False
        assert isinstance(view, TenantView)
        action: str | None = getattr(view, "action", None)
        if action is None or (action == "metadata" and action not in view.needs):
            return True  # the view does not support the method: 405 follows
        view.caller = caller(request, view.kwargs.get("slug"))
        view.caller.require(view.needs[action])
        if request.method not in SAFE_METHODS and not view.caller.tenant.active:
            view.require_changeable()
        return True


class Operating(BasePermission):
    """Admits operators only; for views that are not about one tenant."""

    message = f"You may not {Permission.OPERATE.value}."
    code = "insufficient_permissions"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return bool(request.user.is_staff)


class TenantView(StrictView):
    """A view of one tenant's data: `caller` is set, and has the permission in `needs`."""

    takes_tenant = True
    permission_classes = [Allowed]
    while_suspended: ClassVar[bool] = False
    """Whether members may make changes although the tenant is suspended."""
    needs: ClassVar[Mapping[str, Permission]] = {}
    caller: Caller

    def require_changeable(self) -> None:
        """Raises PermissionDenied if the caller may not change this tenant, which is suspended."""
        if self.caller.tenant.deleted:
            raise PermissionDenied("The tenant is deleted.", "tenant_deleted")
        if not self.while_suspended and not self.caller.operator:
            raise PermissionDenied("The tenant is suspended.", "tenant_suspended")
