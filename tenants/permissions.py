"""Permissions: one table of roles and scopes, and the `Caller` that is checked against it.

Pages, the API and websockets all use it. Independent of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, Subquery

from tenants.models import (
    ApiKey,
    Membership,
    RefusedRequest,
    Role,
    Scope,
    Tenant,
    TenantSum,
    UsageEvent,
    UsageSum,
    User,
)
from tenants.models.usage.ledger import UsageEventQuerySet
from tenants.models.usage.outcomes import RefusedRequestQuerySet
from tenants.models.usage.sums import SumsQuerySet, UsageSumQuerySet


class Permission(Enum):
    READ_TENANT = "see the tenant"
    EDIT_TENANT = "change the tenant"
    READ_MEMBERS = "see the members"
    EDIT_MEMBERS = "change the members"
    EDIT_OWNERS = "change the owners"
    EDIT_SIGN_IN = "change how members sign in"
    READ_KEYS = "see the API keys"
    EDIT_OWN_KEYS = "create API keys"
    EDIT_KEYS = "change other people's API keys"
    READ_ADAPTERS = "see adapters"
    EDIT_ADAPTERS = "change adapters"
    PULL_ADAPTERS = "download adapters"
    READ_LIMITS = "see the limits"
    EDIT_LIMITS = "change the limits"
    READ_USAGE = "see the usage of all members"
    READ_OWN_USAGE = "see the usage of your own keys"
    EDIT_ANNOTATIONS = "tag and score requests"
    REMOVE_ANNOTATIONS = "remove people's tags and scores"
    USE_PLAYGROUND = "use the playground"
    GET_NOTIFICATIONS = "receive notifications"
    EDIT_WEBHOOKS = "change webhooks"
    EDIT_ALERTS = "change alert rules"
    READ_CONTENT = "read stored prompts and answers"
    EDIT_CONTENT = "choose whether prompts and answers are stored, or may leave this installation"
    DESTROY_CONTENT = "destroy stored prompts and answers"
    USE_FILES = "use files and batches"
    READ_AUDIT = "see the audit log"
    EXPORT_TENANT = "export the tenant"
    DELETE_TENANT = "delete the tenant"
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
    P.EDIT_SIGN_IN: (Role.OWNER, frozenset()),
    P.READ_KEYS: (Role.VIEWER, ADMIN),
    P.EDIT_OWN_KEYS: (Role.DEVELOPER, ADMIN),
    P.EDIT_KEYS: (Role.ADMIN, ADMIN),
    P.READ_ADAPTERS: (Role.VIEWER, ADMIN | {Scope.WRITE_ADAPTERS, Scope.INFERENCE}),
    P.EDIT_ADAPTERS: (Role.DEVELOPER, ADMIN | {Scope.WRITE_ADAPTERS}),
    # Not for inference: those keys are handed on to programs that only call models.
    P.PULL_ADAPTERS: (Role.DEVELOPER, ADMIN | {Scope.WRITE_ADAPTERS}),
    P.READ_LIMITS: (Role.VIEWER, ADMIN),
    P.EDIT_LIMITS: (Role.ADMIN, ADMIN),
    P.READ_USAGE: (Role.ADMIN, ADMIN | {Scope.READ_USAGE}),
    P.READ_OWN_USAGE: (Role.VIEWER, ADMIN | {Scope.READ_USAGE}),
    # People, of requests that they see; keys, of all of the tenant's requests.
    P.EDIT_ANNOTATIONS: (Role.DEVELOPER, ADMIN | {Scope.WRITE_SCORES}),
    P.REMOVE_ANNOTATIONS: (Role.DEVELOPER, ADMIN),
    P.GET_NOTIFICATIONS: (Role.DEVELOPER, frozenset()),  # by mail, and in the console
    P.EDIT_WEBHOOKS: (Role.ADMIN, ADMIN),
    P.EDIT_ALERTS: (Role.ADMIN, ADMIN),
    P.READ_CONTENT: (Role.ADMIN, frozenset()),
    P.EDIT_CONTENT: (Role.ADMIN, ADMIN),  # keys may only tighten it
    P.DESTROY_CONTENT: (Role.ADMIN, frozenset()),
    P.USE_FILES: (Role.DEVELOPER, frozenset({Scope.INFERENCE})),  # the role that may make such keys
    P.READ_AUDIT: (Role.ADMIN, frozenset()),
    P.EXPORT_TENANT: (Role.OWNER, frozenset()),
    P.DELETE_TENANT: (Role.OWNER, frozenset()),
    P.USE_PLAYGROUND: (Role.DEVELOPER, frozenset()),  # keys call models without it
    P.OPERATE: (None, frozenset()),  # nobody in a tenant
}
OF_MEMBERS = frozenset({P.READ_CONTENT, P.EDIT_CONTENT, P.DESTROY_CONTENT})
"""Permissions that operators lack unless they are members."""
KEY_SCOPES: Mapping[Role, frozenset[Scope]] = {
    Role.OWNER: ANY_SCOPE,
    Role.ADMIN: ANY_SCOPE,
    # Not usage or scores: a key with these scopes reads the usage, or scores the requests, of the
    # whole tenant.
    Role.DEVELOPER: frozenset({Scope.INFERENCE, Scope.WRITE_ADAPTERS}),
    Role.VIEWER: frozenset(),
}
"""The scopes that a member may give to a key."""


class NotPermitted(PermissionDenied):
    """Its arguments are the sentence that pages show, and the API's error code."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Caller:
    """The author of a request, and the tenant that it is about: a key, a member, or an operator,
    who has every permission except OF_MEMBERS."""

    tenant: Tenant
    key: ApiKey | None = None
    user: User | None = None
    role: Role | None = None

    @classmethod
    def of_user(cls, user: User, slug: str) -> Caller | None:
        """This user and the tenant of that slug; None if the tenant is not visible to the user."""
        mine = Membership.objects.filter(user=user, tenant=OuterRef("pk"))
        found = Tenant.objects.visible_to(user).annotate(held=Subquery(mine.values("role")[:1]))
        tenant: Any = found.filter(slug=slug).first()
        if tenant is None:
            return None
        return cls(tenant, user=user, role=Role(tenant.held) if tenant.held else None)

    @classmethod
    def of_member(cls, user: User, tenant: Tenant) -> Caller:
        """This user and a tenant that is visible to the user."""
        membership = Membership.objects.filter(user=user, tenant=tenant).first()
        return cls(tenant, user=user, role=Role(membership.role) if membership else None)

    @property
    def operator(self) -> bool:
        return self.user is not None and self.user.is_staff

    def may(self, permission: Permission) -> bool:
        role, scopes = TABLE[permission]
        if self.key is not None:
            return not scopes.isdisjoint(self.key.scopes)
        if self.operator and permission not in OF_MEMBERS:
            return True
        if role is None or self.role is None:
            return False
        return RANK.index(self.role) >= RANK.index(role)

    def require(self, permission: Permission) -> None:
        """Raises NotPermitted if the caller lacks the permission."""
        if not self.may(permission):
            raise NotPermitted(f"You may not {permission.value}.", "insufficient_permissions")

    def made(self, key: ApiKey) -> bool:
        """Whether this user made the key."""
        return self.user is not None and key.created_by_id == self.user.pk

    def to_change(self, key: ApiKey) -> Permission:
        """The permission that changing the key takes: a lesser one for the user who made it."""
        return Permission.EDIT_OWN_KEYS if self.made(key) else Permission.EDIT_KEYS

    @property
    def sees_requests(self) -> bool:
        """Whether it sees single requests, of the whole tenant or of its own keys."""
        return self.may(Permission.READ_USAGE) or self.may(Permission.EDIT_OWN_KEYS)

    @property
    def sees_all_sums(self) -> bool:
        """Whether it sees the sums of the whole tenant. So does who sees no single requests, such
        as a viewer, since they have no keys with sums of their own."""
        return self.may(Permission.READ_USAGE) or not self.sees_requests

    def usage(self) -> UsageSumQuerySet:
        """The usage that it may see: the tenant's, or that of the keys that this user made."""
        found = UsageSum.objects.filter(tenant=self.tenant)
        if self.sees_all_sums:
            return found
        return found.filter(key__in=self.tenant.keys.filter(created_by=self.user))

    def totals(self) -> SumsQuerySet[Any]:
        """As `usage`, for sums that need no split by key, member, adapter or model."""
        if self.sees_all_sums:
            return TenantSum.objects.filter(tenant=self.tenant)
        return self.usage()

    def events(self) -> UsageEventQuerySet:
        """The requests that it may see: the tenant's, or those of the keys that this user made."""
        found = UsageEvent.objects.filter(tenant=self.tenant)
        if self.may(Permission.READ_USAGE):
            return found
        return found.filter(key__in=self.tenant.keys.filter(created_by=self.user))

    def refused(self) -> RefusedRequestQuerySet:
        """The refused requests that it may see, as `events`."""
        found = RefusedRequest.objects.filter(tenant=self.tenant)
        if self.may(Permission.READ_USAGE):
            return found
        return found.filter(key__in=self.tenant.keys.filter(created_by=self.user))

    @property
    def key_scopes(self) -> frozenset[str]:
        """The scopes that it may give to a key: never more than it has."""
        if self.key is not None:
            return frozenset(self.key.scopes)
        if self.operator:
            return frozenset(ANY_SCOPE)
        return frozenset(KEY_SCOPES[self.role] if self.role else ())
