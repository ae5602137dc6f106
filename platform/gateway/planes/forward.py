"""Forwards requests at the API's address that consoles answer: usage, files, batches and others.

Clients send them with a tenant's key, like inference requests, but only the console has the models
and views to answer them. So this forwards bytes without parsing them. Reports are GETs without a
body. Bodies are forwarded at a total rate in bytes per second, each part after the console has
taken the previous one. Tenants share a bounded number of concurrent requests of each kind, because
a slow client occupies one. Files are forwarded only with a valid key; the public keys of receipts
need none. Redirects can't be used, because clients don't send their key to another address.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import httpx
import structlog

from inference.errors import ClientDisconnected, InferenceError, Overloaded, Unavailable
from inference.gateway.exchanges.exchange import (
    ADAPTER_HEADER,
    Exchange,
    Headers,
    Receive,
    Scope,
    Send,
)
from inference.interfaces.directory import Grant
from inference.key_headers import KEY_HEADERS
from inference.operations.messages.messages import MESSAGES
from inference.shared_capacity import SharedCapacity

log = structlog.get_logger(__name__)

PATHS = (
    "/v1/batches",
    "/v1/evals",
    "/v1/feedback",
    "/v1/files",
    "/v1/fine_tuning",
    "/v1/load_lora_adapter",
    "/v1/messages/batches",
    "/v1/organization",
    "/v1/unload_lora_adapter",
    "/v1/uploads",
    "/v1/usage",
)
"""The paths that consoles answer, with everything below them. An ingress that puts both planes
under one origin sends them to consoles, so that no upload passes through a gateway."""
ROUTE = rf"^({'|'.join(path[1:] for path in PATHS)})(/|$)"
"""Matches these paths in Channels' router, which cuts off the first slash."""
AT_ONCE = 16
"""Concurrent reports, and likewise concurrent requests with a body or with a file as answer. A
tenant, or all clients without a key together, get a quarter of them. Others are told to retry."""
MAX_CONNECTIONS = 4 * AT_ONCE
"""To the console. There can be up to twice AT_ONCE of each kind, when tenants with few requests
arrive while others have many."""
ANSWER_S = 30.0
ASKED = {b"authorization", b"accept", b"accept-encoding", b"user-agent"}
"""Request headers that are forwarded to the console."""
OF_BODIES = {b"content-type", b"content-length", b"idempotency-key"}
"""Additionally, for requests with a body."""
ANSWERED = {"content-type", "content-encoding", "content-length", "x-request-id", "link",
            "www-authenticate", "cache-control", "vary", "allow", "retry-after",
            "x-content-type-options", ADAPTER_HEADER.decode()}  # fmt: skip
"""Answer headers that are forwarded to the client."""
FORWARDED = b"x-lorikeet-forwarded"
METHODS = (
    (re.compile(r"/v1/files"), ("GET", "HEAD", "POST")),
    (re.compile(r"/v1/files/[^/]+"), ("GET", "HEAD", "DELETE")),
    (re.compile(r"/v1/uploads(/[^/]+/(parts|complete|cancel))?"), ("POST",)),
    (re.compile(r"/v1/(messages/)?batches"), ("GET", "HEAD", "POST")),
    (re.compile(r"/v1/(messages/)?batches/[^/]+/cancel"), ("POST",)),
    (re.compile(r"/v1/evals(/[^/]+/runs)?"), ("GET", "HEAD", "POST")),
    (re.compile(r"/v1/evals/[^/]+(/runs/[^/]+)?"), ("GET", "HEAD", "POST", "DELETE")),
    (re.compile(r"/v1/evals/[^/]+/runs/[^/]+/cancel"), ("POST",)),
    (re.compile(r"/v1/feedback"), ("POST",)),
    (re.compile(r"/v1/fine_tuning/jobs"), ("GET", "HEAD", "POST")),
    (re.compile(r"/v1/fine_tuning/jobs/[^/]+/(cancel|pause|resume)"), ("POST",)),
    (re.compile(r"/v1/(un)?load_lora_adapter"), ("POST",)),
    (re.compile(r"/v1/messages/batches/[^/]+"), ("GET", "HEAD", "DELETE")),
)
"""Allowed methods by path; GET and HEAD for all other paths."""
CONTENT = re.compile(r"/v1/(files/[^/]+/content|messages/batches/[^/]+/results)")


class BandwidthLimit:
    """A rate in bytes per second, shared by all transfers. Times are of one clock, in seconds."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def wait_s(self, size: int, now: float) -> float:
        """How long to wait after transferring `size` bytes."""
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        return self._free_at - now


class Forward:
    """The ASGI application; a context manager, which closes its connections."""

    def __init__(
        self,
        console_url: str,
        authenticate: Callable[[str], Awaitable[Grant]],
        bytes_per_s: float = 32 << 20,
    ) -> None:
        """`console_url` is where this process reaches a console; `bytes_per_s` bounds the rate of
        all bodies together."""
        self._console_url = console_url
        self._authenticate = authenticate
        self._bandwidth = BandwidthLimit(bytes_per_s)
        self._reports, self._files = SharedCapacity[str](AT_ONCE), SharedCapacity[str](AT_ONCE)

    async def __aenter__(self) -> Forward:
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS)
        self._client = httpx.AsyncClient(
            base_url=self._console_url, timeout=ANSWER_S, limits=limits, trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        if exchange.path.startswith(MESSAGES.path):
            exchange.errors = MESSAGES.errors
        large = exchange.method == "POST" or CONTENT.fullmatch(exchange.path) is not None
        try:
            exchange.require_method(*_methods(exchange.path))
            if any(name == FORWARDED for name, _ in scope["headers"]):
                # A proxy in front of the gateways sends it back here.
                raise Unavailable(
                    "This installation is misconfigured: LORIKEET_CONSOLE_INTERNAL_URL leads to a "
                    "gateway."
                )
            tenant = await self._tenant(exchange, must_be_known=large)
            running = self._files if large else self._reports
            with running.holding(tenant, 1) as has_room:
                if not has_room:
                    raise Overloaded("Too many of these requests are running.", retry_after_s=1)
                await self._forward(exchange, scope, receive, send)
        except InferenceError as error:
            await exchange.fail(error)

    async def _tenant(self, exchange: Exchange, *, must_be_known: bool) -> str:
        """The tenant of the request's key; empty if it has none.

        Raises:
            InvalidApiKey: the key is invalid, or missing although required.
            Unavailable: the key can't be looked up now.
        """
        if not must_be_known and not exchange.shows_key:
            return ""
        return (await self._authenticate(exchange.api_key())).tenant

    async def _forward(
        self, exchange: Exchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        has_body = exchange.method == "POST"
        passed = _passed(exchange, scope["headers"], has_body=has_body)
        request = self._client.build_request(
            exchange.method,
            _target(scope),
            headers=[*passed, (FORWARDED, b"1")],
            content=self._parts(receive) if has_body else None,
        )
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.HTTPError:
            raise Unavailable("The console is unavailable.", retry_after_s=1.0) from None
        await self._answer(exchange, answer, send)

    async def _answer(self, exchange: Exchange, answer: httpx.Response, send: Send) -> None:
        start = {"type": "http.response.start", "status": answer.status_code}
        exchange.status = answer.status_code
        try:
            await send({**start, "headers": list(_response_headers(answer))})
            async for chunk in answer.aiter_raw():
                await exchange.write(chunk)
                await self._wait(len(chunk))
            await exchange.write(b"", more=False)
        except httpx.HTTPError as error:  # the client sees an answer that is cut off
            log.warning("forward_cut_off", path=exchange.path, error=str(error))
        finally:
            await answer.aclose()

    async def _parts(self, receive: Receive) -> AsyncIterator[bytes]:
        """The parts of the body, each received only when it is needed."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            more = message.get("more_body", False)
            if body := message.get("body", b""):
                yield body
                await self._wait(len(body))

    async def _wait(self, size: int) -> None:
        await asyncio.sleep(self._bandwidth.wait_s(size, time.monotonic()))


def _methods(path: str) -> tuple[str, ...]:
    for pattern, methods in METHODS:
        if pattern.fullmatch(path):
            return methods
    return ("GET", "HEAD")


def _passed(exchange: Exchange, headers: Headers, *, has_body: bool) -> Headers:
    """The headers that are forwarded, with the key in `authorization`, where the console expects
    it."""
    allowed = ASKED | OF_BODIES if has_body else ASKED
    passed = [(name, value) for name, value in headers if name in allowed]
    if not any(name in KEY_HEADERS for name, _ in headers):
        return passed
    key = (b"authorization", f"Bearer {exchange.api_key()}".encode("latin-1"))
    return [*((name, value) for name, value in passed if name != b"authorization"), key]


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


def _response_headers(answer: httpx.Response) -> Iterable[tuple[bytes, bytes]]:
    for name, value in answer.headers.items():
        if name in ANSWERED:
            yield name.encode("latin-1"), value.encode("latin-1")
