"""Operators see and change everything, so a password alone should not be enough for them; and a
tenant may require more of its members (`tenants.api.second_factor`).

An operator who signed in with only a password is asked to set up a second factor: at sign-in, and
by a banner on every page. With OPERATOR_SECOND_FACTOR=require they can do nothing else until they
have. Single sign-on counts as a second factor: the provider decides what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from tenants.api import problems, second_factor
from tenants.models import Tenant

PAGE = "second-factor"
ACCOUNT_PAGES = "/account/"
"""Prefix of all pages needed to set one up, and of no operator's page."""
REFUSAL = "Operators need a second factor here: set one up in the console, under your account."


def is_missing(request: HttpRequest) -> bool:
    """Whether an operator signed in by a password alone."""
    return bool(getattr(request.user, "is_staff", False)) and second_factor.is_missing(request)


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
    return ask(request, REFUSAL, reverse(PAGE))


def ask_for(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The answer in place of a page of a tenant that is closed to this session."""
    start = page(onward=reverse("overview", args=[tenant.slug]))
    return ask(request, second_factor.refusal(tenant), start)


def ask(request: HttpRequest, message: str, start: str) -> HttpResponse:
    """Leads to the page that asks for a second factor; what htmx fetches leads to `start`."""
    if "HX-Request" in request.headers:
        return HttpResponse(status=204, headers={"HX-Redirect": start})
    if request.method not in ("GET", "HEAD"):
        return HttpResponse(message, status=HTTPStatus.FORBIDDEN, content_type="text/plain")
    return HttpResponseRedirect(page(onward=request.get_full_path()))
