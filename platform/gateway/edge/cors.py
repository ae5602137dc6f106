"""CORS: which other origins' pages may read the API's answers, including preflight requests.

Off if no origin is configured. Pages send keys in a header that they set themselves, never in
cookies: credentials are never allowed, so that `*` is safe as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from inference.gateway.exchanges.exchange import Receive, Scope, Send

ANY = "*"
METHODS = b"GET, HEAD, POST, DELETE, OPTIONS"
MAX_AGE_S = b"7200"
_NAMES = re.compile(rb"[A-Za-z0-9_-]{1,64}(?:[ \t]*,[ \t]*[A-Za-z0-9_-]{1,64}){0,63}")
"""The names of the headers that a page wants to send."""


class Cors:
    """Wraps an application."""

    def __init__(self, app: Any, origins: Collection[str]) -> None:
        """`origins` such as `https://app.example.com`, or `*` for all."""
        self._app, self._any = app, ANY in origins
        self._off = not origins
        self._origins = {origin.rstrip("/").lower().encode() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._off:
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin is None or not (self._any or origin.lower() in self._origins):
            await self._app(scope, receive, send)
            return
        asked = b"access-control-request-method" in headers
        if scope["method"] == "OPTIONS" and asked:
            await self._preflight(origin, headers, send)
            return
        allowed = [*self._allowed(origin), (b"access-control-expose-headers", b"*")]

        async def sending(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *allowed]}
            await send(message)

        await self._app(scope, receive, sending)

    def _allowed(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        if self._any:
            return [(b"access-control-allow-origin", b"*")]
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]

    async def _preflight(self, origin: bytes, headers: dict[bytes, bytes], send: Send) -> None:
        allowed = [
            *self._allowed(origin),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", MAX_AGE_S),
        ]
        wanted = headers.get(b"access-control-request-headers", b"").strip()
        if _NAMES.fullmatch(wanted):
            allowed.append((b"access-control-allow-headers", wanted))
        await send({"type": "http.response.start", "status": 204, "headers": allowed})
        await send({"type": "http.response.body"})
