"""Who may make an account: only people who were invited."""

from __future__ import annotations

from typing import Any, ClassVar

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.models import EmailAddress
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.http import HttpRequest

from frontend.single_sign_on import Provider
from tenants.models import Invitation, User

log = structlog.get_logger(__name__)

INVITED = "invitation"
"""Where a session keeps the token of the invitation that somebody came with."""


def invitation_of(request: HttpRequest) -> Invitation | None:
    """The invitation that this session came with, as long as it can be accepted."""
    token = request.session.get(INVITED)
    return Invitation.objects.find(token) if token else None


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts with a password."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return invitation_of(request) is not None


class SocialAccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Accounts by single sign-on."""

    error_messages: ClassVar[dict[str, Any]] = DefaultSocialAccountAdapter.error_messages | {
        "no_password": "This is your only way in: set a password first."
    }

    def get_provider(
        self, request: HttpRequest, provider: str, client_id: str | None = None
    ) -> Provider:
        return Provider(request, app=self.get_app(request, provider, client_id))

    def authenticate_by_email(self, sociallogin: Any) -> tuple[User, str] | None:
        """Whose address it is: verified by the provider, and here as well.

        Anybody can write somebody else's address into an account of his own, and would have that
        person work in it.
        """
        told = [address.email for address in sociallogin.email_addresses if address.verified]
        found = EmailAddress.objects.lookup(told).filter(verified=True).first()
        return (found.user, found.email) if found else None

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return invitation_of(request) is not None

    def on_authentication_error(self, request: HttpRequest, provider: Any, **what: Any) -> None:
        """The page says only that it failed: this is for the operator."""
        log.warning("sign_on_failed", error=what["error"], reason=str(what["exception"] or ""))
