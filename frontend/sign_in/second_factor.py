"""Operators see and change everything, so a password alone should not be enough for them.

An operator who signed in with only a password is asked to set up a second factor: at sign-in, and
by a banner on every page. With OPERATOR_SECOND_FACTOR=require they can do nothing else until they
have. Single sign-on counts as a second factor: the provider decides what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlencode

from allauth.account.authentication import get_authentication_records
from allauth.mfa.models import Authenticator
from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from tenants.api import problems
from tenants.models import User

PAGE = "second-factor"
ACCOUNT_PAGES = "/account/"
"""Prefix of all pages needed to set one up, and of no operator's page."""
REFUSAL = "Operators need a second factor here: set one up in the console, under your account."


def is_missing(request: HttpRequest) -> bool:
    """Whether an operator signed in by a password alone. Queries the database once per request."""
    known: bool | None = getattr(request, "_lacks_second_factor", None)
    if known is None:
        known = _by_password_alone(request)
        request._lacks_second_factor = known  # type: ignore[attr-defined]
    return known


def _by_password_alone(request: HttpRequest) -> bool:
    user = request.user
    if not isinstance(user, User) or not user.is_staff:
        return False
    records = get_authentication_records(request, user)
    if any(record.get("method") in ("socialaccount", "mfa") for record in records):
        return False
    return not is_mfa_enabled(user, [Authenticator.Type.TOTP])


def is_required() -> bool:
    """Whether operators can do nothing without it."""
    return bool(settings.OPERATOR_SECOND_FACTOR == "require")


def page(onward: str) -> str:
    """The URL of the page that asks for a second factor, and continues to `onward`."""
    return f"{reverse(PAGE)}?{urlencode({'next': onward})}"


class SecondFactorRequired:
    """Middleware, after AccountMiddleware: where a second factor is required, operators without
    one can see only the pages of their account."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        free = request.path.startswith(ACCOUNT_PAGES)
        if free or not is_required() or not is_missing(request):
            return self._get_response(request)
        return _refusal(request)


def _refusal(request: HttpRequest) -> HttpResponse:
    if request.path.startswith("/api/"):
        return problems.failure(HTTPStatus.FORBIDDEN, REFUSAL, "second_factor_required")
    if "HX-Request" in request.headers:
        return HttpResponse(status=204, headers={"HX-Redirect": reverse(PAGE)})
    if request.method not in ("GET", "HEAD"):
        return HttpResponse(REFUSAL, status=HTTPStatus.FORBIDDEN, content_type="text/plain")
    return HttpResponseRedirect(page(onward=request.get_full_path()))
