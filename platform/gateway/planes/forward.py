"""What clients ask for under the API's address and the console answers: usage and receipts.

Reports are read by a tenant's key, as models are called, but they come from the models and views of
the console. They are few and small: GETs without a body, so many at a time, each within a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import httpx
import structlog

from inference.errors import InferenceError, Overloaded, Unavailable
from inference.gateway.exchange import KEY_HEADERS, Exchange, Headers, Receive, Scope, Send

log = structlog.get_logger(__name__)

MAX_FORWARDED = 16
"""At a time; more are told to come back."""
ANSWER_S = 30.0
ASKED = {b"authorization", b"accept", b"accept-encoding", b"user-agent"}
"""Headers that the console is told."""
ANSWERED = {"content-type", "content-encoding", "content-length", "x-request-id", "link",
            "www-authenticate", "cache-control", "vary", "allow"}  # fmt: skip
"""Headers that the client is told."""
FORWARDED = b"x-lorikeet-forwarded"


class Forward:
    """The ASGI application; a context, which ends its connections."""

    def __init__(self, console_url: str) -> None:
        """`console_url` is where this process reaches a console."""
        self._console_url = console_url
        self._forwarded = 0

    async def __aenter__(self) -> Forward:
        limits = httpx.Limits(max_connections=MAX_FORWARDED)
        self._client = httpx.AsyncClient(
            base_url=self._console_url, timeout=ANSWER_S, limits=limits, trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        self._forwarded += 1
        try:
            await self._forward(exchange, scope, send)
        except InferenceError as error:
            await exchange.fail(error)
        finally:
            self._forwarded -= 1

    async def _forward(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if self._forwarded > MAX_FORWARDED:
            raise Overloaded("Too many reports are asked for at this time.", retry_after_s=1)
        if any(name == FORWARDED for name, _ in headers):  # what stands before us sends it back
            raise Unavailable("No console answers here: see CONSOLE_INTERNAL_URL.")
        exchange.require_method("GET", "HEAD")
        request = self._client.build_request(
            exchange.method,
            _target(scope),
            headers=[*_passed(exchange, headers), (FORWARDED, b"1")],
        )
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.HTTPError:
            raise Unavailable("The console does not answer.", retry_after_s=1.0) from None
        start = {"type": "http.response.start", "status": answer.status_code}
        try:
            await send({**start, "headers": list(_told(answer))})
            async for chunk in answer.aiter_raw():
                await exchange.write(chunk)
            await exchange.write(b"", more=False)
        except httpx.HTTPError as error:  # the client sees an answer that is cut off
            log.warning("forward_cut_off", path=exchange.path, error=str(error))
        finally:
            await answer.aclose()


def _passed(exchange: Exchange, headers: Headers) -> Headers:
    """What the console is told, the key where it looks for one."""
    passed = [(name, value) for name, value in headers if name in ASKED]
    if not any(name in KEY_HEADERS for name, _ in headers):
        return passed
    key = (b"authorization", f"Bearer {exchange.api_key()}".encode("latin-1"))
    return [*((name, value) for name, value in passed if name != b"authorization"), key]


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


def _told(answer: httpx.Response) -> Iterable[tuple[bytes, bytes]]:
    for name, value in answer.headers.items():
        if name in ANSWERED:
            yield name.encode("latin-1"), value.encode("latin-1")
