"""Where a person is signed in: one row for each session, with its browser and address.

The rows are allauth's (`allauth.usersessions`). Whoever sets up a first second factor is signed out
everywhere else: other sessions began with a password alone, perhaps one that somebody stole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from allauth.account.adapter import get_adapter
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib import messages
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse

from tenants.api.second_factor import FACTORS, is_set_up

NOTED_FOR_S = 300
"""How often a session's row is updated, by each console without Redis."""
BROWSERS = (
    ("Edge", r"\bEdg(?:e|A|iOS)?/"),
    ("Opera", r"\bOPR/"),
    ("Firefox", r"\b(?:Firefox|FxiOS)/"),
    ("Chrome", r"\b(?:Chrome|CriOS)/"),
    ("Safari", r"\bSafari/"),
)
"""The first that matches: many browsers name those that they descend from."""
SYSTEMS = (
    ("iPhone", r"iPhone"),
    ("iPad", r"iPad"),
    ("Android", r"Android"),
    ("Windows", r"Windows"),
    ("macOS", r"Mac OS X|Macintosh"),
    ("ChromeOS", r"CrOS"),
    ("Linux", r"Linux|X11"),
)
MAX_DEVICE = 60
MAX_USER_AGENT = 200
"""Characters of a User-Agent header that a row has room for."""


def device(user_agent: str) -> str:
    """The browser and system in a User-Agent header, as a person would name them."""
    browser, system = _first(BROWSERS, user_agent), _first(SYSTEMS, user_agent)
    if browser and system:
        return f"{browser} on {system}"
    return browser or user_agent[:MAX_DEVICE] or "Unknown browser"


def _first(names: tuple[tuple[str, str], ...], user_agent: str) -> str:
    return next((name for name, form in names if re.search(form, user_agent)), "")


class SessionNoted:
    """Middleware, after AccountMiddleware: notes when and from where a session was used."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.SESSION_COOKIE_NAME in request.COOKIES and request.user.is_authenticated:
            key = hashlib.sha256((request.session.session_key or "").encode()).hexdigest()
            if cache.add(f"session-noted-{key}", 1, NOTED_FOR_S):
                _note(request)
        return self._get_response(request)


def _note(request: HttpRequest) -> None:
    """As allauth's own middleware, in one statement."""
    session = UserSession(
        session_key=request.session.session_key,
        user_id=request.user.pk,
        ip=get_adapter().get_client_ip(request),
        user_agent=request.headers.get("User-Agent", "")[:MAX_USER_AGENT],
    )
    UserSession.objects.bulk_create(
        [session],
        update_conflicts=True,
        unique_fields=["session_key"],
        update_fields=["user", "ip", "user_agent", "last_seen_at"],
    )


def first_factor_added(request: HttpRequest, user: Any, authenticator: Any, **_: Any) -> None:
    """Receiver of allauth's signal: ends the person's other sessions."""
    if authenticator.type in FACTORS and not is_set_up(user, besides=authenticator.pk):
        others = UserSession.objects.filter(user=user)
        for one in others.exclude(session_key=request.session.session_key):
            one.end()
        messages.info(request, "You are signed out everywhere else.")
