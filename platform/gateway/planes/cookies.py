"""Bounds the Cookie headers of a request at the edge of the process, before anything reads them.

Python before 3.11.10 takes quadratic time for a quoted cookie with backslashes (CVE-2024-7592), and
holds the GIL: one anonymous request with 80 KB of them stops every stream for many seconds. All who
read cookies come after this: Django's `request.COOKIES`, and in the event loop itself Channels'
sessions of websockets and the guard of uploads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import structlog

from inference.errors import HeadersTooLarge
from inference.gateway.exchange import Receive, Scope, Send
from inference.gateway.hub import new_id
from inference.operations.openai import error_body
from tenants.api.problems import MEDIA_TYPE, problem

log = structlog.get_logger(__name__)

MAX_COOKIE_BYTES = 8 << 10
"""Of all Cookie headers together. Ours have a few hundred bytes, and a notice for the next page up
to 2 KiB; the rest is for what other applications under the same domain leave in a browser."""
MAX_BACKSLASHES = 128
"""Of all Cookie headers together. The worst cookie then takes 1 ms, where 8 KiB of backslashes take
300 ms. RFC 6265 allows none; some applications escape the quotes of a small JSON with them."""
REFUSED = 1008
"""Websocket close code; a socket that was never open is refused with HTTP's 403 instead."""


class CookieLimit:
    """Passes on to `app` what has few cookies or none; refuses the rest with 431."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = excess(scope.get("headers", ()))  # the lifespan has no headers
        if error is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()  # websocket.connect
            await send({"type": "websocket.close", "code": REFUSED, "reason": "cookies too large"})
        else:
            await _refuse(scope["path"], error, send)


def excess(headers: Iterable[tuple[bytes, bytes]]) -> HeadersTooLarge | None:
    """What is too much about the cookies, None if nothing is. They may come in several headers."""
    cookies = [value for name, value in headers if name.lower() == b"cookie"]
    size = sum(map(len, cookies))
    if size > MAX_COOKIE_BYTES:
        return HeadersTooLarge(
            f"The request's cookies have {size} bytes, but this server takes {MAX_COOKIE_BYTES}: "
            "delete the cookies of this site."
        )
    backslashes = sum(value.count(b"\\") for value in cookies)
    if backslashes > MAX_BACKSLASHES:
        return HeadersTooLarge(
            f"The request's cookies have {backslashes} backslashes, but this server takes "
            f"{MAX_BACKSLASHES}: delete the cookies of this site."
        )
    return None


async def _refuse(path: str, error: HeadersTooLarge, send: Send) -> None:
    """The server discards what comes of the body, so that the client hears this answer."""
    id = new_id()
    log.info("request", request_id=id, path=path, status=error.http_status, error=error.message)
    media_type, body = _worded(path, error)
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", f"req_{id}".encode()),
    ]
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _worded(path: str, error: HeadersTooLarge) -> tuple[str, bytes]:
    """Media type and body in the shape of the API at this path, or as plain text."""
    if path.startswith("/v1/"):
        return "application/json", error_body(error)
    if path.startswith("/api/"):
        described = problem(error.http_status, error.message, error.code)
        return MEDIA_TYPE, json.dumps(described).encode()
    return "text/plain; charset=utf-8", f"{error.message}\n".encode()
