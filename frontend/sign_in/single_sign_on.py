"""Single sign-on by OpenID Connect, with checks that allauth does not make.

allauth relies on TLS for the origin of an ID token. Here its signature is verified, a nonce ties it
to the browser that asked, and the user info must be about the same person (OpenID Connect Core 1.0,
sections 3.1.3.7 and 5.3.2). A provider's answer, or the lack of one, must never cause a 500.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from allauth.socialaccount.helpers import render_authentication_error
from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.oauth2.client import OAuth2Client, OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.crypto import salted_hmac
from requests import RequestException

UNUSABLE = (AttributeError, KeyError, TypeError, ValueError, RequestException, ImproperlyConfigured)
"""Exceptions that malformed answers of a provider cause; allauth raises the last one for a subject
that is too long."""
NEEDED = frozenset({"issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"})
"""Fields that a provider's metadata must have (OpenID Connect Discovery 1.0, section 3)."""


def nonce_of(state: str) -> str:
    """The nonce that the ID token for this state must contain.

    A state is random, stored in one session and valid for one answer, and so is its nonce."""
    return salted_hmac("single sign-on", state).hexdigest()


@contextmanager
def _answers() -> Iterator[None]:
    """Turns the exceptions of a missing or malformed answer into one error.

    Raises:
        OAuth2Error: the answer cannot be used.
    """
    try:
        yield
    except UNUSABLE as wrong:
        raise OAuth2Error(f"the provider's answer can't be used: {wrong!r}") from wrong


class Client(OAuth2Client):  # type: ignore[misc]
    """Adds a nonce to the authorization request."""

    def get_redirect_url(
        self, authorization_url: str, scope: list[str], extra_params: dict[str, str]
    ) -> str:
        asked = {**extra_params, "nonce": nonce_of(self.state)}
        url: str = super().get_redirect_url(authorization_url, scope, asked)
        return url


class CodeExchange(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]
    """Exchanges an authorization code for a user's identity."""

    client_class = Client

    @property
    def openid_config(self) -> dict[str, Any]:
        with _answers():
            found: dict[str, Any] = super().openid_config
            if missing := NEEDED - found.keys():
                raise ValueError(f"no {', '.join(sorted(missing))}")
        return found

    def get_access_token_data(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        with _answers():
            found: dict[str, Any] = super().get_access_token_data(*args, **kwargs)
        self.did_fetch_access_token = False  # else allauth would not verify the signature
        return found

    def complete_login(self, request: HttpRequest, app: Any, token: Any, **kwargs: Any) -> Any:
        with _answers():
            login = super().complete_login(request, app, token, **kwargs)
            check(login.account.extra_data, nonce=nonce_of(request.GET["state"]))
        # For the page that says that there is no account.
        request.provider_login = login  # type: ignore[attr-defined]
        return login


def check(extra_data: Mapping[str, Mapping[str, Any]], *, nonce: str) -> None:
    """Check what allauth does not in an ID token (`extra_data["id_token"]`).

    Raises:
        ValueError: it never expires, is for another request, or the user info is somebody else's.
        KeyError: a claim is missing.
    """
    claims = extra_data["id_token"]
    if "exp" not in claims:
        raise ValueError("the ID token never expires")
    if not hmac.compare_digest(str(claims["nonce"]), nonce):
        raise ValueError("the ID token answers another request")
    if extra_data["userinfo"]["sub"] != claims["sub"]:
        raise ValueError("the user info is not about whom the ID token is about")


class Provider(OpenIDConnectProvider):  # type: ignore[misc]
    """The identity provider configured by OIDC_*."""

    oauth2_adapter_class = CodeExchange

    def redirect(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """A page that takes the browser to the provider.

        Not a redirect: as the response to a form it would violate the policy `form-action 'self'`,
        which browsers apply to all redirects after a form.
        """
        try:
            answer: HttpResponse = super().redirect(request, *args, **kwargs)
        except OAuth2Error as wrong:
            answer = render_authentication_error(request, self, exception=wrong)
        if answer.status_code != 302:
            return answer
        where = {"provider": self, "redirect_to": answer["Location"]}
        return render(request, "socialaccount/login_redirect.html", where)

    def extract_email_addresses(self, data: dict[str, Any]) -> list[Any]:
        """Some providers send "false" as a string, which allauth would take for true."""
        found: list[Any] = super().extract_email_addresses(data)
        for address in found:
            address.verified = address.verified in (True, "true")
        return found


def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """The redirect URI, to which the provider sends people back."""
    exchange = CodeExchange(request, provider_id)
    try:
        answer: HttpResponse = OAuth2CallbackView.adapter_view(exchange)(request)
    except SocialApp.DoesNotExist:
        raise Http404 from None
    except OAuth2Error as wrong:
        answer = render_authentication_error(request, exchange.get_provider(), exception=wrong)
    return answer
