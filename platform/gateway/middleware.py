"""Middleware around each Django request: its id, headers, database connection and audit actor."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.urls import is_valid_path
from django.utils.encoding import escape_uri_path
from django.utils.http import escape_leading_slashes

from inference.ids import new_id
from tenants.models.audit import act_as, actor_of

log = structlog.get_logger(__name__)


class RequestId:
    """Sets `x-request-id` and logs one line per request, as the token path does."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        id, began = new_id(), time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=id):
            response = self._get_response(request)
            log.info(
                "request",
                method=request.method,
                path=request.path,
                status=response.status_code,
                ms=round((time.monotonic() - began) * 1000, 1),
            )
        response["x-request-id"] = f"req_{id}"
        return response


class ExtraSlash:
    """Redirects an address that does not exist to the same without slashes at its end, if that
    exists; Django does the opposite."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        unknown = response.status_code == 404 and request.resolver_match is None
        other = request.path_info.rstrip("/")
        if not unknown or request.method not in ("GET", "HEAD") or not is_valid_path(other):
            return response
        query = request.META.get("QUERY_STRING", "")
        where = escape_leading_slashes(escape_uri_path(other))
        return HttpResponsePermanentRedirect(f"{where}?{query}" if query else where)


class CompressedPages(GZipMiddleware):
    """Compresses pages, to an eighth of their size, but not downloads. CSRF tokens are masked
    differently in each page, and Django varies the length of the answer, so that its size reveals
    nothing about the page's contents."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> Any:
        page = response.get("Content-Type", "").startswith("text/html")
        return super().process_response(request, response) if page else response


class PreallocatedFrames:
    """Preallocates stack space for the deep calls of a page's templates.

    CPython keeps the frames of a thread in chunks of 16 KiB: a call that needs a new chunk maps it
    and its return unmaps it. If values are rendered at that depth thousands of calls do so, each
    at the cost of 200 calls (python/cpython#142183). A frame larger than a chunk gets a chunk of
    twice its size, and all calls below it use the other half.
    """

    FRAME_BYTES = 128 * 1024

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    __call__.__code__ = __call__.__code__.replace(co_stacksize=FRAME_BYTES // 8)


class ConnectionReturned:
    """Returns the database connection to the pool before the answer is sent, because a slow client
    would otherwise occupy it. A streaming answer that still queries gets another connection."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if not connection.in_atomic_block:  # a test's, which is rolled back at its end
            connection.close()
        return response


class Audited:
    """Records the signed-in user as the actor of an unsafe request's changes
    (`tenants.models.audit`).

    Must follow AuthenticationMiddleware. For API keys, their authentication sets the actor.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method in ("GET", "HEAD", "OPTIONS", "TRACE"):
            return self._get_response(request)
        with suppress(DatabaseError):  # the view reports it
            act_as(actor_of(request))
        try:
            return self._get_response(request)
        finally:
            with suppress(DatabaseError):
                act_as(None)


class NotStored:
    """Forbids caching, because answers are about people and tenants; after signing out the
    browser's Back button shows none of them. Static files do not pass through here."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        response.headers.setdefault("Cache-Control", "no-store")
        return response


def policy(api_url: str) -> str:
    """The pages' content security policy; pages open their sockets at the API's address."""
    sockets = api_url.replace("http", "ws", 1)
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "font-src 'self'",
            f"connect-src 'self' {api_url} {sockets}",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "object-src 'none'",
        )
    )


class ContentPolicy:
    """Pages may run and load only files that this console serves."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        response.headers.setdefault("Content-Security-Policy", policy(settings.API_URL))
        return response


YEAR_S = 365 * 24 * 3600


class StrictTransport:
    """If the console is served by HTTPS (SECURE_COOKIES), browsers use only HTTPS for a year."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if settings.SESSION_COOKIE_SECURE:
            response.headers.setdefault("Strict-Transport-Security", f"max-age={YEAR_S}")
        return response
