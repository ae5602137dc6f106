"""Who may do what: one table over roles and scopes, and the caller that it is asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from django.http import Http404
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.api.authentication import KeyHolder
from tenants.models import ApiKey, Membership, Role, Scope, Tenant, User


class Permission(Enum):
    READ_TENANT = "see the tenant"
    EDIT_TENANT = "change the tenant"
    READ_MEMBERS = "see the members"
    EDIT_MEMBERS = "change the members"
    EDIT_OWNERS = "change the owners"
    READ_KEYS = "see the API keys"
    EDIT_OWN_KEYS = "make API keys"
    EDIT_KEYS = "change other people's API keys"
    READ_ADAPTERS = "see adapters"
    EDIT_ADAPTERS = "change adapters"
    READ_LIMITS = "see the limits"
    EDIT_LIMITS = "change the limits"
    READ_USAGE = "see the usage"
    OPERATE = "operate this installation"


RANK: Sequence[Role] = [Role.VIEWER, Role.DEVELOPER, Role.ADMIN, Role.OWNER]
ANY_SCOPE = frozenset(Scope)
ADMIN = frozenset({Scope.ADMIN})

P = Permission
TABLE: Mapping[Permission, tuple[Role | None, frozenset[Scope]]] = {
    # permission       the least role    or a key with one of these scopes
    P.READ_TENANT: (Role.VIEWER, ANY_SCOPE),
    P.EDIT_TENANT: (Role.ADMIN, ADMIN),
    P.READ_MEMBERS: (Role.VIEWER, ADMIN),
    P.EDIT_MEMBERS: (Role.ADMIN, ADMIN),
    P.EDIT_OWNERS: (Role.OWNER, frozenset()),
    P.READ_KEYS: (Role.VIEWER, ADMIN),
    P.EDIT_OWN_KEYS: (Role.DEVELOPER, ADMIN),
    P.EDIT_KEYS: (Role.ADMIN, ADMIN),
    P.READ_ADAPTERS: (Role.VIEWER, ADMIN | {Scope.WRITE_ADAPTERS, Scope.INFERENCE}),
    P.EDIT_ADAPTERS: (Role.DEVELOPER, ADMIN | {Scope.WRITE_ADAPTERS}),
    P.READ_LIMITS: (Role.VIEWER, ADMIN),
    P.EDIT_LIMITS: (Role.ADMIN, ADMIN),
    P.READ_USAGE: (Role.VIEWER, ADMIN | {Scope.READ_USAGE}),
    P.OPERATE: (None, frozenset()),  # nobody in a tenant
}
KEY_SCOPES: Mapping[Role, frozenset[Scope]] = {
    Role.OWNER: ANY_SCOPE,
    Role.ADMIN: ANY_SCOPE,
    Role.DEVELOPER: ANY_SCOPE - ADMIN,
    Role.VIEWER: frozenset(),
}
"""The scopes that a member may give to a key."""


@dataclass(frozen=True)
class Caller:
    """Who asks, about which tenant: a key, a member, or an operator (who may do all)."""

    tenant: Tenant
    key: ApiKey | None = None
    user: User | None = None
    role: Role | None = None

    @property
    def operator(self) -> bool:
        return self.user is not None and self.user.is_staff

    def may(self, permission: Permission) -> bool:
        role, scopes = TABLE[permission]
        if self.key is not None:
            return not scopes.isdisjoint(self.key.scopes)
        if self.operator:
            return True
        if role is None or self.role is None:
            return False
        return RANK.index(self.role) >= RANK.index(role)

    def require(self, permission: Permission) -> None:
        """Raises PermissionDenied where `may` says no."""
        if not self.may(permission):
            raise PermissionDenied(f"You may not {permission.value}.", "insufficient_permissions")

    @property
    def key_scopes(self) -> frozenset[str]:
        """The scopes that it may give to a key: never more than it has."""
        if self.key is not None:
            return frozenset(self.key.scopes)
        if self.operator:
            return frozenset(ANY_SCOPE)
        return frozenset(KEY_SCOPES[self.role] if self.role else ())


def caller(request: Request, slug: str | None = None) -> Caller:
    """Who asks, about the tenant of that slug, else of `?tenant=`, else about its only one.

    Raises:
        Http404: the tenant does not exist or is not the caller's; the two look alike.
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
    membership = Membership.objects.filter(user=user, tenant=tenant).first()
    return Caller(tenant, user=user, role=Role(membership.role) if membership else None)


def _key_holder(key: ApiKey, slug: str | None) -> Caller:
    if slug not in (None, "", key.tenant.slug):
        raise Http404
    return Caller(key.tenant, key=key)


def _only(tenants: Any) -> Tenant:
    found: list[Tenant] = list(tenants[:6])
    if len(found) == 1:
        return found[0]
    names = ", ".join(tenant.slug for tenant in found[:5]) + (", ..." if len(found) > 5 else "")
    message = f"Say which: {names}." if found else "You are not a member of any tenant."
    raise ValidationError({"tenant": message})


class Allowed(BasePermission):
    """Lets a caller through who has what the view's `needs` names for the action."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not request.user.is_authenticated:
            return False
        assert isinstance(view, TenantView)
        action: str | None = getattr(view, "action", None)
        if action is None:
            return True  # a method that the view does not take: 405 follows
        view.caller = caller(request, view.kwargs.get("slug"))
        view.caller.require(view.needs[action])
        _require_active(request, view.caller)
        return True


def _require_active(request: Request, caller: Caller) -> None:
    if request.method not in SAFE_METHODS and not caller.tenant.active and not caller.operator:
        raise PermissionDenied("The tenant is suspended.", "tenant_suspended")


class Operating(BasePermission):
    """Lets operators through: for what is not about one tenant."""

    message = f"You may not {Permission.OPERATE.value}."
    code = "insufficient_permissions"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return bool(request.user.is_staff)


class TenantView(APIView):
    """A view of one tenant's data: `caller` is set, and may do what `needs` says."""

    permission_classes = [Allowed]
    needs: ClassVar[Mapping[str, Permission]] = {}
    caller: Caller
