"""One HTTP request and its answer, over plain ASGI, on either plane.

Not a Django view: a part of an answer costs one `send` here and no thread, middleware or response
object. What the inference API adds is in `inference_exchange.py`.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from inference import key_headers
from inference.errors import (
    ClientDisconnected,
    InferenceError,
    InvalidApiKey,
    InvalidRequest,
    MethodNotAllowed,
    PayloadTooLarge,
    RequestTimeout,
    UnsupportedMediaType,
)
from inference.ids import new_id
from inference.operations.error_shapes import OPENAI, ErrorShape

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
Admit = Callable[[bytes], Awaitable[None]]
"""Called with a part of a body before that is kept; raises InferenceError to refuse the body."""

BODY_TIMEOUT_S = 60.0
"""A client that takes longer to send its body is cut off."""
DISCARD_FACTOR = 8
"""A body over the limit is still read to its end before the 413, up to this many times the limit:
clients that write everything before they read would miss the answer otherwise."""

IGNORED = ("api-version", "beta")
"""Query parameters that the SDKs of Azure and Anthropic add to requests of any kind."""
PLAIN = (b"", b"identity")
"""Content encodings of an uncompressed body."""

ADAPTER_HEADER = b"x-lorikeet-adapter"
"""The adapter version that answered, or that was loaded: `name@digest`."""
JSON: Headers = [(b"content-type", b"application/json")]
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


REFUSED = 1008
"""Websocket close code of a policy violation."""


class Exchange:
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.id = new_id()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.status = 0
        self.started_at = time.time()
        self.errors: ErrorShape = OPENAI
        """The format of errors for this client."""
        self.began = time.monotonic()
        self._receive, self._send = receive, send
        self._all_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._headers = dict(self._all_headers)
        self._query: bytes = scope.get("query_string", b"")
        self._closes = False
        """The connection is closed after the answer."""

    @property
    def shown_id(self) -> str:
        """The id as clients see it in headers."""
        return f"req_{self.id}"

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def query(self, *known: str) -> dict[str, str]:
        """The query parameters by name. A known name that ends in `[]` is a list's: it may be
        repeated, with the brackets or without; its last value counts.

        Raises:
            InvalidRequest: one is not known, because the answer to a query with a misspelt filter
                would be mistaken for a filtered one; or it is repeated and no list.
        """
        found: dict[str, str] = {}
        for name, value in parse_qsl(self._query.decode("latin-1"), keep_blank_values=True):
            is_list = f"{name.removesuffix('[]')}[]" in known
            if not is_list and name not in (*known, *IGNORED):
                raise InvalidRequest(f"Unknown parameter: `{name[:64]}`.", param=name)
            if not is_list and name in found:
                raise InvalidRequest(f"`{name}` takes one value.", param=name)
            found[name] = value
        return found

    def require_method(self, *methods: str) -> None:
        """Raise MethodNotAllowed unless the method is one of these."""
        if self.method not in methods:
            raise MethodNotAllowed(
                f"{self.path} supports only {' or '.join(methods)}.", allowed=methods
            )

    @property
    def shows_key(self) -> bool:
        """Whether at least one header has an API key."""
        return key_headers.shows_key(self._all_headers)

    def api_key(self) -> str:
        """The client's API key; raises InvalidApiKey as `key_headers.api_key`."""
        return key_headers.api_key(self._all_headers)

    def require_token(self, token: str, name: str) -> None:
        """Check in constant time that the caller's bearer is this token, called `name` in errors.

        Raises:
            InvalidApiKey: it is not.
        """
        if not hmac.compare_digest(self.api_key().encode(), token.encode()):
            raise InvalidApiKey(f"This URL requires the {name} as its bearer token.")

    async def body(
        self,
        limit_bytes: int,
        timeout_s: float = BODY_TIMEOUT_S,
        admit: Admit | None = None,
    ) -> bytes:
        """The whole request body without a byte order mark, each part of which `admit` may refuse.

        Raises:
            UnsupportedMediaType: the body is compressed.
            PayloadTooLarge: it is over the limit. A client that asked whether to send it
                (`Expect: 100-continue`) is told before it sends any of it.
            InferenceError: `admit` refuses it.
            RequestTimeout: it did not arrive in time.
            ClientDisconnected: the client disconnected before its end.
        """
        if (encoding := self._headers.get(b"content-encoding", b"").lower()) not in PLAIN:
            raise UnsupportedMediaType(
                f"The `Content-Encoding` {encoding.decode('latin-1')} is not supported: "
                "send the body uncompressed."
            )
        self._refuse_declared(limit_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._body(limit_bytes, admit)
        except TimeoutError:
            raise RequestTimeout(
                f"The request body did not arrive within {timeout_s:g} s."
            ) from None

    def _refuse_declared(self, limit_bytes: int) -> None:
        """Refuse a body that is announced as too long, if the client waits for that."""
        declared = self._headers.get(b"content-length", b"0")
        expects = self._headers.get(b"expect", b"").lower() == b"100-continue"
        if expects and int(declared) > limit_bytes:
            self._closes = True  # it may send the body after all
            raise _too_large(limit_bytes)

    async def _body(self, limit_bytes: int, admit: Admit | None) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        refusal: InferenceError | None = None
        while more and size <= limit_bytes * DISCARD_FACTOR:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size > limit_bytes:
                refusal = _too_large(limit_bytes)
            elif refusal is None and admit is not None:
                refusal = await _refusal(admit, part)
            if refusal is None:
                parts.append(part)
            else:
                parts.clear()
        if refusal is not None:
            raise refusal
        return b"".join(parts).removeprefix(BOM_UTF8)

    async def disconnected(self) -> None:
        """Wait until the client disconnects. Call it only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, headers: Headers) -> None:
        """Write the status and the headers: these, and those that every answer has."""
        self.status = status
        all_headers = [*headers, *self.common_headers()]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    def common_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that every answer has."""
        shown, ms = self.shown_id.encode(), round(self.elapsed_s * 1000)
        found = [(b"x-request-id", shown), (b"openai-processing-ms", str(ms).encode())]
        if self.errors.id_header:
            found.append((self.errors.id_header, shown))
        if self._closes:
            found.append((b"connection", b"close"))
        return found

    def write(self, data: bytes, *, more: bool = True) -> Awaitable[None]:
        """Write a part of the body; `more=False` ends the answer."""
        return self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(self, status: int, data: bytes, headers: Headers = ()) -> None:
        """Write a whole JSON answer."""
        length = (b"content-length", str(len(data)).encode())
        await self.begin(status, [*JSON, length, *headers])
        await self.write(b"" if self.method == "HEAD" else data, more=False)

    async def fail(self, error: InferenceError) -> None:
        """Answer with an error, as far as that is still possible: a stream that has begun gets it
        as its last event, a client that is gone gets nothing."""
        if isinstance(error, ClientDisconnected):
            self.status = self.status or error.http_status
        elif self.status:
            await self.write(self.last_event(error), more=False)
        else:
            body = self.errors.body(error, self.shown_id)
            await self.reply(error.http_status, body, _error_headers(error))

    def last_event(self, error: InferenceError) -> bytes:
        """The event that ends a stream with this error."""
        return self.errors.event(error, self.shown_id)


async def refuse_socket(scope: Scope, receive: Receive, send: Send, error: InferenceError) -> None:
    """Answer a websocket's handshake as a request would be: with the error's status, headers and
    body. Call it before the socket is accepted. A server without the extension for that closes it.
    """

    async def in_handshake(event: dict[str, Any]) -> None:
        await send({**event, "type": f"websocket.{event['type']}"})

    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": REFUSED, "reason": error.message})
        return
    await Exchange({**scope, "method": "GET"}, receive, in_handshake).fail(error)


def _too_large(limit_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request body exceeds this server's limit of {limit_bytes} bytes.")


async def _refusal(admit: Admit, part: bytes) -> InferenceError | None:
    """Why this part makes the body invalid, if it does; the rest is then still read and dropped."""
    try:
        await admit(part)
    except InferenceError as error:
        return error
    return None


def _error_headers(error: InferenceError) -> Headers:
    if isinstance(error, MethodNotAllowed) and error.allowed:
        yield b"allow", ", ".join(error.allowed).encode()
    if error.http_status == 401:
        yield b"www-authenticate", b"Bearer"
    yield from _retry_headers(error)


def _retry_headers(error: InferenceError) -> Headers:
    """When to retry, or that retrying is useless: OpenAI's SDKs would retry any 409 and 429."""
    if error.retry_header is not None:
        yield b"retry-after", error.retry_header.encode()
    elif error.http_status < 500:
        yield b"x-should-retry", b"false"


def parse_json(kind: type[Any], body: bytes) -> Any:
    """Decode a small body.

    Raises:
        InvalidRequest: it is not valid JSON of this type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid: {error}.") from None
