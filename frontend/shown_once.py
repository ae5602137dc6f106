"""What a page shows once, such as the text of a new API key.

Who made it is redirected to the page, so that loading it again makes nothing a second time. The
text goes along in a cookie, encrypted for this page and this person, which the page's next answer
takes away. Nothing is stored on the server.
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
"""How long the redirect may take."""


class Shown(msgspec.Struct, frozen=True):
    """A text to show once; `about` says of what it is, where the page alone does not."""

    user_id: int
    page: str
    text: str
    about: str = ""


def redirect(request: HttpRequest, page: str, text: str, about: str = "") -> HttpResponse:
    """To the page at this address, which shows the text the next time that it is rendered here."""
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
    """The page, with what it shows this once as `shown_once`, if there is something."""
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
