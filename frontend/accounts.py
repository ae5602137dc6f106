"""Who may make an account: only people who were invited."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.http import HttpRequest

from tenants.models import Invitation

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
    """Accounts by single sign-on. A known, verified address signs its user in without this."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return invitation_of(request) is not None
