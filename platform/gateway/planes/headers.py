"""Bounds each header that Django and others parse, before they do. The edge bounds their total.

Python before 3.11.10 takes quadratic time for a quoted cookie with backslashes (CVE-2024-7592) and
holds the GIL: 80 KB of them take many seconds. Every Python takes quadratic time for parameters of
a Content-Type (`email.message`), 1.3 s for 32 KB; Django parses it on the event loop, when it
creates the request. All code that reads headers, including the guard of uploads, is behind this.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import structlog

from inference.errors import HeadersTooLarge
from inference.gateway.exchanges.exchange import Receive, Scope, Send, refuse_socket
from inference.ids import new_id
from inference.operations.error_shapes import OPENAI
from tenants.problem_details import MEDIA_TYPE, problem

log = structlog.get_logger(__name__)

MAX_COOKIE_BYTES = 8 << 10
"""Of all Cookie headers together. Lorikeet's have a few hundred bytes, and a notice for the next
page up to 2 KiB; the rest is for cookies of other applications under the same domain."""
MAX_BACKSLASHES = 128
"""Of all Cookie headers together. The worst cookie then takes 1 ms; 8 KiB of backslashes would take
300 ms. RFC 6265 allows none, but some applications escape the quotes of a small JSON with them."""
MAX_PARSED_BYTES = {
    b"content-type": 512,
    b"content-length": 32,
    b"accept": 1 << 10,
    b"accept-encoding": 1 << 10,
    b"accept-language": 1 << 10,
    b"host": 512,
    b"range": 512,
    b"if-match": 1 << 10,
    b"if-none-match": 1 << 10,
    b"if-modified-since": 64,
    b"if-unmodified-since": 64,
}
"""For each parsed header, all of one name together. The worst takes 1 ms."""


class HeaderLimit:
    """Passes requests with headers of ordinary size on to `app`; refuses others with 431."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = excess(scope.get("headers", ()))  # the lifespan has no headers
        if error is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()  # websocket.connect
            await refuse_socket(scope, receive, send, error)
        else:
            await _refuse(scope["path"], error, send)


def excess(headers: Iterable[tuple[bytes, bytes]]) -> HeadersTooLarge | None:
    """The error for the first bound that the headers exceed; None if they exceed none."""
    sizes: Counter[bytes] = Counter()
    cookies = []
    for name, value in headers:
        lower = name.lower()
        if lower == b"cookie":
            cookies.append(value)
        elif lower in MAX_PARSED_BYTES:
            sizes[lower] += len(value)
    for name, size in sizes.items():
        if size > MAX_PARSED_BYTES[name]:
            return HeadersTooLarge(
                f"The header {name.decode()} has {size} bytes; at most "
                f"{MAX_PARSED_BYTES[name]} are allowed."
            )
    return _excess_of_cookies(cookies)


def _excess_of_cookies(cookies: list[bytes]) -> HeadersTooLarge | None:
    """`cookies` are the values of all Cookie headers."""
    size = sum(map(len, cookies))
    if size > MAX_COOKIE_BYTES:
        return HeadersTooLarge(
            f"The request's cookies have {size} bytes; at most {MAX_COOKIE_BYTES} are "
            "allowed. Delete the cookies of this site."
        )
    backslashes = sum(value.count(b"\\") for value in cookies)
    if backslashes > MAX_BACKSLASHES:
        return HeadersTooLarge(
            f"The request's cookies have {backslashes} backslashes; at most "
            f"{MAX_BACKSLASHES} are allowed. Delete the cookies of this site."
        )
    return None


async def _refuse(path: str, error: HeadersTooLarge, send: Send) -> None:
    """Answer without reading the body; the server discards it, so that the client gets the
    answer."""
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
        return "application/json", OPENAI.body(error)
    if path.startswith("/api/"):
        described = problem(error.http_status, error.message, error.code)
        return MEDIA_TYPE, json.dumps(described).encode()
    return "text/plain; charset=utf-8", f"{error.message}\n".encode()
