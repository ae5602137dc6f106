"""Secrets that a page shows once, such as the text of a new API key.

After creating one, the user is redirected to the page, so that reloading it creates nothing again.
The text is in a cookie, encrypted and bound to this page and this user, which the page's next
response deletes. Nothing is stored on the server.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.fernet import Fernet, InvalidToken
from django import shortcuts
from django.conf import settings
from django.http import HttpRequest, HttpResponse

COOKIE = "shown_once"
LASTS_S = 60
"""Lifetime of the cookie, which the redirect must not exceed."""


class Shown(msgspec.Struct, frozen=True):
    """A text to show once; `about` says what it belongs to, where the page does not."""

    user_id: int
    page: str
    text: str
    about: str = ""


def redirect(request: HttpRequest, page: str, text: str, about: str = "") -> HttpResponse:
    """Redirect to the page at this address, which shows the text when `render` next renders it."""
    shown = Shown(request.user.pk or 0, page, text, about)
    response = shortcuts.redirect(page)
    response.set_cookie(
        COOKIE,
        _cipher().encrypt(msgspec.json.encode(shown)).decode(),
        max_age=LASTS_S,
        path=page,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Strict",
    )
    return response


def render(
    request: HttpRequest, template: str, context: Mapping[str, Any], status: int = 200
) -> HttpResponse:
    """Render the page, with what it shows this once, if anything, as `shown_once`."""
    shown = _taken(request)
    response = shortcuts.render(request, template, {**context, "shown_once": shown}, status=status)
    if COOKIE in request.COOKIES:
        response.delete_cookie(COOKIE, path=request.path, samesite="Strict")
    return response


def _taken(request: HttpRequest) -> Shown | None:
    try:
        text = _cipher().decrypt(request.COOKIES.get(COOKIE, "").encode(), ttl=LASTS_S)
    except InvalidToken:
        return None
    shown = msgspec.json.decode(text, type=Shown)
    mine = (shown.user_id, shown.page) == (request.user.pk, request.path)
    return shown if mine else None


def _cipher() -> Fernet:
    key = hmac.digest(settings.SECRET_KEY.encode(), b"lorikeet: shown once", hashlib.sha256)
    return Fernet(urlsafe_b64encode(key))
