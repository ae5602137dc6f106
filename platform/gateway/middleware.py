"""What surrounds each request that Django answers: its id, and who answers for what it changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

from inference.gateway.fleet.hub import new_id
from tenants.models.audit import act_as, actor_of

log = structlog.get_logger(__name__)


class RequestId:
    """Sets `x-request-id` and logs one line a request, as the token path does."""

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


class CompressedPages(GZipMiddleware):
    """Pages travel compressed, as an eighth of their bytes; what is downloaded does not. CSRF
    tokens are masked anew in each page, and Django varies the length of what is sent, so that sizes
    tell nothing of what a page holds."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> Any:
        page = response.get("Content-Type", "").startswith("text/html")
        return super().process_response(request, response) if page else response


class RoomForFrames:
    """Calls that are as deep as a page's templates find room for their frames.

    CPython keeps the frames of a thread in chunks of 16 KiB: the call that needs another maps it,
    its return unmaps it, and where values are rendered at that depth thousands of calls do so, each
    at the price of 200 (python/cpython#142183). A frame that is larger than a chunk gets one that
    holds it twice, and all calls below it have the other half.
    """

    FRAME_BYTES = 128 * 1024

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    __call__.__code__ = __call__.__code__.replace(co_stacksize=FRAME_BYTES // 8)


class ConnectionReturned:
    """Gives the database's connection back before the answer is sent: a client that reads slowly
    would keep it from everybody else. What still reads while it is sent gets another."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if not connection.in_atomic_block:  # a test's, which is rolled back at its end
            connection.close()
        return response


class Audited:
    """The signed-in user answers for what an unsafe request changes (`tenants.models.audit`).

    After AuthenticationMiddleware. API keys are told by their own authentication.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method in ("GET", "HEAD", "OPTIONS", "TRACE"):
            return self._get_response(request)
        with suppress(DatabaseError):  # the view says what is wrong
            act_as(actor_of(request))
        try:
            return self._get_response(request)
        finally:
            with suppress(DatabaseError):
                act_as(None)


class NotStored:
    """Answers are about people and tenants: no cache keeps them, and after signing out the
    browser's Back button shows none. Static files do not come this way."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        response.headers.setdefault("Cache-Control", "no-store")
        return response


def policy(api_url: str) -> str:
    """What pages may do; they open their sockets at the API's address."""
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
    """Pages run nothing and load nothing but what this console serves as a file."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        response.headers.setdefault("Content-Security-Policy", policy(settings.API_URL))
        return response


YEAR_S = 365 * 24 * 3600


class StrictTransport:
    """Where it is served by HTTPS (SECURE_COOKIES), browsers come by nothing else for a year."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if settings.SESSION_COOKIE_SECURE:
            response.headers.setdefault("Strict-Transport-Security", f"max-age={YEAR_S}")
        return response
