"""Whether a session was opened with a second factor, which a tenant may require of its members.

The rule is of people: API keys have no second factor. Single sign-on counts as one, because the
provider decides what it asks for.
"""

from __future__ import annotations

from allauth.account.authentication import get_authentication_records
from allauth.mfa.models import Authenticator
from django.db.models import OuterRef, QuerySet
from django.http import HttpRequest

from tenants.errors import LacksSecondFactor
from tenants.models import Tenant, User
from tenants.models.accounts import TenantQuerySet

FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
"""What is asked for after a password; recovery codes only replace one of these."""


def is_set_up(user: User, *, besides: int | None = None) -> bool:
    """Whether the user has a second factor, other than the one with the id `besides`."""
    return factors_of(user).exclude(pk=besides).exists()


def factors_of(user: User | OuterRef) -> QuerySet[Authenticator]:
    """The user's second factors."""
    found: QuerySet[Authenticator] = Authenticator.objects.filter(user=user, type__in=FACTORS)
    return found


def is_missing(request: HttpRequest) -> bool:
    """Whether its user signed in by a password alone. Queries the database once per request, if the
    user was not loaded with the answer (`has_second_factor`)."""
    known: bool | None = getattr(request, "_lacks_second_factor", None)
    if known is None:
        known = _by_password_alone(request)
        request._lacks_second_factor = known  # type: ignore[attr-defined]
    return known


def _by_password_alone(request: HttpRequest) -> bool:
    user = request.user
    if not isinstance(user, User):
        return False
    records = get_authentication_records(request, user)
    if any(record.get("method") in ("socialaccount", "mfa") for record in records):
        return False
    known: bool | None = getattr(user, "has_second_factor", None)
    return not (is_set_up(user) if known is None else known)


def closes(request: HttpRequest, tenant: Tenant) -> bool:
    """Whether the tenant is closed to this session for want of a second factor."""
    return tenant.second_factor_required and is_missing(request)


def opened(request: HttpRequest, tenants: TenantQuerySet) -> TenantQuerySet:
    """Those of the tenants that are open to this session."""
    return tenants.filter(second_factor_required=False) if is_missing(request) else tenants


def require_own(request: HttpRequest, *, required: bool) -> None:
    """Raises LacksSecondFactor if whoever is to require it of others would shut themselves out."""
    if required and is_missing(request):
        raise LacksSecondFactor


def refusal(tenant: Tenant) -> str:
    return f"{tenant.name} requires a second factor: set one up in the console, under your account."
