"""Accounts: who may sign up, how often a sign-in may be tried, who is asked for a second factor."""

from __future__ import annotations

from typing import Any, ClassVar

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import LoginForm as AllauthLoginForm
from allauth.account.forms import ResetPasswordForm as AllauthResetPasswordForm
from allauth.account.models import EmailAddress
from allauth.account.utils import filter_users_by_email, filter_users_by_username
from allauth.core import context
from allauth.mfa.base import forms as mfa
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from frontend.sign_in import second_factor, throttling
from frontend.sign_in.single_sign_on import Provider
from tenants.models import Invitation, User

log = structlog.get_logger(__name__)

WRONG = "Wrong username, email or password."
INVITED = "invitation"
"""Session key of the token of the invitation that the user came with."""


def invitation_of(request: HttpRequest) -> Invitation | None:
    """The invitation that the user of this session came with; None if it cannot be accepted."""
    token = request.session.get(INVITED)
    return Invitation.objects.find(token) if token else None


def accounts_of(*logins: str) -> list[str]:
    """The accounts with these usernames or email addresses, as throttles count them.

    By primary key, so that an account's name and address share one count. A login without an
    account is counted under its own text: refusals must not reveal which accounts exist.
    """
    found = {
        user.pk
        for login in logins
        for user in (*filter_users_by_username(login), *filter_users_by_email(login))
    }
    return [f"user {pk}" for pk in sorted(found)] or [f"login {login.lower()}" for login in logins]


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts with a password."""

    error_messages: ClassVar[dict[str, Any]] = DefaultAccountAdapter.error_messages | {
        "username_password_mismatch": WRONG,
        "email_password_mismatch": WRONG,
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return invitation_of(request) is not None

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        """Check a password, for signing in or to confirm a signed-in user's identity.

        Raises:
            TooManyAttempts: too many failed; the password is not checked.
        """
        logins = {credentials[name] for name in ("username", "email") if credentials.get(name)}
        attempt = throttling.PASSWORDS.begin(request, accounts_of(*logins))
        user: User | None = super().authenticate(request, **credentials)
        if user is not None:
            attempt.succeeded()
        return user

    def post_login(self, request: HttpRequest, user: User, **facts: Any) -> HttpResponse:
        """Operators without a second factor are asked to set one up before they continue."""
        answer: HttpResponse = super().post_login(request, user, **facts)
        if second_factor.is_missing(request):
            return HttpResponseRedirect(second_factor.page(onward=answer.headers["Location"]))
        return answer


class LoginForm(AllauthLoginForm):  # type: ignore[misc]
    """Takes a username or email address, and the password."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = "Username or email"
        self.fields["login"].widget.attrs["autocomplete"] = "username"


class ResetPasswordForm(AllauthResetPasswordForm):  # type: ignore[misc]
    """Requests an email with a link; throttled."""

    def clean_email(self) -> str:
        email: str = super().clean_email()
        throttling.RESET_MAILS.begin(context.request, accounts_of(email))
        return email


class _ThrottledCode:
    """A form that takes a code of an authenticator app or a recovery code."""

    user: User

    def clean_code(self) -> str:
        attempt = throttling.CODES.begin(context.request, [f"user {self.user.pk}"])
        code: str = super().clean_code()  # type: ignore[misc]
        attempt.succeeded()
        return code


class AuthenticateForm(_ThrottledCode, mfa.AuthenticateForm):  # type: ignore[misc]
    """The second step of signing in."""


class ReauthenticateForm(_ThrottledCode, mfa.ReauthenticateForm):  # type: ignore[misc]
    """Confirms the identity of a signed-in user."""


class SocialAccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Accounts by single sign-on."""

    error_messages: ClassVar[dict[str, Any]] = DefaultSocialAccountAdapter.error_messages | {
        "no_password": "This is your only way to sign in: set a password first."
    }

    def get_provider(
        self, request: HttpRequest, provider: str, client_id: str | None = None
    ) -> Provider:
        return Provider(request, app=self.get_app(request, provider, client_id))

    def authenticate_by_email(self, sociallogin: Any) -> tuple[User, str] | None:
        """The user with this address, provided that it is verified by the provider and here.

        Otherwise somebody could add another person's address to their own account, and that person
        would be signed in to it.
        """
        addresses = [address.email for address in sociallogin.email_addresses if address.verified]
        found = EmailAddress.objects.lookup(addresses).filter(verified=True).first()
        return (found.user, found.email) if found else None

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return invitation_of(request) is not None

    def on_authentication_error(self, request: HttpRequest, provider: Any, **what: Any) -> None:
        """Log the reason for the operator; the page only says that it failed."""
        log.warning("sign_on_failed", error=what["error"], reason=str(what["exception"] or ""))
