"""Passkeys: allauth's WebAuthn in the console's words, and bounded."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.webauthn import forms as webauthn
from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.http.request import split_domain_port

MAX_NAME = 60
MAX_PASSKEYS = 20
"""Of one person: each sign-in reads them all."""
FULL = f"You have {MAX_PASSKEYS} passkeys, which is the limit. Remove one first."
NOT_ACCEPTED = "This passkey was not accepted. Try again."


def are_possible(request: HttpRequest) -> bool:
    """Whether browsers offer passkeys here: only to names, over HTTPS or on this machine."""
    host, _ = split_domain_port(request.get_host())
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return request.is_secure()
    return False


class PasskeyAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Names in the dialogs of browsers, and for passkeys that have none."""

    def generate_authenticator_name(self, user: Any, type: Authenticator.Type) -> str:
        return f"Passkey {Authenticator.objects.filter(user=user, type=type).count() + 1}"

    def get_public_key_credential_rp_entity(self) -> dict[str, str]:
        return {**super().get_public_key_credential_rp_entity(), "name": "Lorikeet"}


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Allauth refuses passkeys as incorrect codes."""
    try:
        yield
    except ValidationError as error:
        if getattr(error, "code", None) != "incorrect_code":
            raise
        raise ValidationError(NOT_ACCEPTED) from error


class AddPasskeyForm(webauthn.AddWebAuthnForm):  # type: ignore[misc]
    """A new passkey."""

    name = forms.CharField(max_length=MAX_NAME, required=False)
    passwordless = forms.BooleanField(
        label="Sign in with this passkey alone",
        required=False,
        initial=True,
        help_text="Your device then asks for its PIN, fingerprint or face. Without this, the "
        "passkey is asked for after your password.",
    )

    def clean(self) -> dict[str, Any]:
        with _in_our_words():
            cleaned: dict[str, Any] = super().clean()
        found = Authenticator.objects.filter(user=self.user, type=Authenticator.Type.WEBAUTHN)
        if found.count() >= MAX_PASSKEYS:
            raise ValidationError(FULL)
        return cleaned


class RenamePasskeyForm(webauthn.EditWebAuthnForm):  # type: ignore[misc]
    """Another name for a passkey."""

    name = forms.CharField(max_length=MAX_NAME)


class _RewordedCredential:
    def clean_credential(self) -> Authenticator:
        with _in_our_words():
            return super().clean_credential()  # type: ignore[misc]


class AuthenticatePasskeyForm(_RewordedCredential, webauthn.AuthenticateWebAuthnForm):  # type: ignore[misc]
    """The second step of signing in."""


class SignInPasskeyForm(_RewordedCredential, webauthn.LoginWebAuthnForm):  # type: ignore[misc]
    """Signs in without a password."""


class ReauthenticatePasskeyForm(_RewordedCredential, webauthn.ReauthenticateWebAuthnForm):  # type: ignore[misc]
    """Confirms the identity of a signed-in user."""
