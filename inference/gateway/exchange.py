"""One HTTP request and its answer, over plain ASGI.

Not a Django view: a streamed token costs one `send` here and no thread, middleware or response
object.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol
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
    Unavailable,
    UnsupportedMediaType,
)
from inference.gateway import idempotency
from inference.gateway.idempotency import Recording
from inference.gateway.requests.stream import Stream
from inference.gateway.tick import Tick, count
from inference.grants import Grant, KeptAnswer, Reservation, Room
from inference.ids import new_id
from inference.operations import openai
from inference.operations.bodies.shape import Shape
from inference.operations.call import Call
from inference.operations.error_shapes import OPENAI, ErrorShape
from inference.tracing import Span

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

BODY_TIMEOUT_S = 60.0
"""A client that takes longer to send its body is cut off."""
DISCARD_FACTOR = 8
"""A body over the limit is still read to its end before the 413, up to this many times the limit:
clients that write everything before they read would miss the answer otherwise."""

IGNORED = ("api-version", "beta")
"""Query parameters that the SDKs of Azure and Anthropic add to requests of any kind."""
PLAIN = (b"", b"identity")
"""Content encodings of an uncompressed body."""

JSON: Headers = [(b"content-type", b"application/json")]
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
REPLAYED = (b"idempotent-replayed", b"true")


class Keeping(Protocol):
    """Stores the answers to requests."""

    async def whole(self, id: str, body: bytes) -> bytes:
        """Store the answer to the request of this id; returns the answer as it is to be sent, which
        says whether it was stored."""

    async def ending(self, id: str, events: bytes) -> bytes:
        """As `whole`, for a stream: its last event has the answer."""


class Exchange:
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.id = new_id()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.status = 0
        self.started_at = time.time()
        self.grant: Grant | None = None
        self.checked: Tick | None = None
        """The iteration of the event loop in which the grant was looked up."""
        self.call: Call | None = None
        self.stream: Stream | None = None
        self.span: Span | None = None
        self.errors: ErrorShape = OPENAI
        """The format of errors for this client."""
        self.failed: Callable[[InferenceError], bytes] = lambda _: b""
        """The framing's event for an error within a stream; empty where `errors` makes it."""
        self.keeping: Keeping | None = None
        """Stores the answer, if it is to be stored."""
        self.reservation: Reservation | None = None
        """Source of the `x-ratelimit` headers."""
        self.began = time.monotonic()
        self._receive, self._send = receive, send
        self._all_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._headers = dict(self._all_headers)
        self._query: bytes = scope.get("query_string", b"")

    @property
    def shown_id(self) -> str:
        """The id as clients see it in headers."""
        return f"req_{self.id}"

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def traceparent(self) -> str:
        """The client's `traceparent` header, which makes the request part of its trace; may be
        empty."""
        header: bytes = self._headers.get(b"traceparent", b"")
        return header.decode("latin-1")

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

    def idempotency_key(self) -> str | None:
        """The `Idempotency-Key`, if there is one.

        Raises:
            InvalidRequest: it is malformed.
        """
        header = self._headers.get(idempotency.HEADER)
        return None if header is None else idempotency.name_of(header)

    def record(self, recording: Recording) -> None:
        """Send everything through the recording from now on."""
        self._send = recording.tee(self._send)

    async def body(
        self,
        limit_bytes: int,
        timeout_s: float = BODY_TIMEOUT_S,
        shape: Shape | None = None,
        hold: Callable[[int], None] = lambda size: None,
    ) -> bytes:
        """The whole request body; `shape`, if given, counts its contents as it arrives. `hold` is
        called with the size of each part before that is kept, and may refuse it.

        Raises:
            UnsupportedMediaType: the body is compressed.
            PayloadTooLarge: it is over the limit.
            InvalidRequest: `shape` refuses it.
            InferenceError: `hold` refuses it.
            RequestTimeout: it did not arrive in time.
            ClientDisconnected: the client disconnected before its end.
        """
        if (encoding := self._headers.get(b"content-encoding", b"").lower()) not in PLAIN:
            raise UnsupportedMediaType(
                f"The `Content-Encoding` {encoding.decode('latin-1')} is not supported: "
                "send the body uncompressed."
            )
        try:
            async with asyncio.timeout(timeout_s):
                return await self._body(limit_bytes, shape, hold)
        except TimeoutError:
            raise RequestTimeout(
                f"The request body did not arrive within {timeout_s:g} s."
            ) from None

    async def _body(
        self, limit_bytes: int, shape: Shape | None, hold: Callable[[int], None]
    ) -> bytes:
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
                refusal = PayloadTooLarge(
                    f"The request body exceeds this server's limit of {limit_bytes} bytes."
                )
            elif refusal is None:
                refusal = await _refusal(shape, hold, part)
            if refusal is None:
                parts.append(part)
            else:
                parts.clear()
        if refusal is not None:
            raise refusal
        return b"".join(parts)

    async def disconnected(self) -> None:
        """Wait until the client disconnects. Call it only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, headers: Headers) -> None:
        """Write the status and the headers that every answer has."""
        self.status = status
        shown = self.shown_id.encode()
        common = [
            (b"x-request-id", shown),
            *([(self.errors.id_header, shown)] if self.errors.id_header else []),
            (b"openai-processing-ms", str(round(self.elapsed_s * 1000)).encode()),
            *_ratelimit_headers(self.reservation),
        ]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *common]}
        )

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Write a part of the body; `more=False` ends the answer."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(self, status: int, data: bytes, headers: Headers = ()) -> None:
        """Write a whole JSON answer."""
        length = (b"content-length", str(len(data)).encode())
        await self.begin(status, [*JSON, length, *headers])
        try:
            await self.write(b"" if self.method == "HEAD" else data, more=False)
        except Unavailable:  # raised by the recording, which has not sent anything yet
            self.status = 0
            raise

    async def replay(self, kept: KeptAnswer) -> None:
        """Write the answer of an earlier request, under that one's id."""
        self.id = kept.request_id
        if kept.content_type.startswith("application/json"):
            return await self.reply(200, kept.body, [REPLAYED])
        await self.begin(200, [*EVENT_STREAM, REPLAYED])
        await self.write(kept.body, more=False)

    async def fail(self, error: InferenceError) -> None:
        """Answer with an error, as far as that is still possible: a stream that has begun gets it
        as its last event, a client that is gone gets nothing."""
        if isinstance(error, ClientDisconnected):
            self.status = self.status or error.http_status
        elif self.status:
            event = self.failed(error) or self.errors.event(error, self.shown_id)
            await self.write(event, more=False)
        else:
            body = self.errors.body(error, self.shown_id)
            await self.reply(error.http_status, body, _error_headers(error))


async def _refusal(
    shape: Shape | None, hold: Callable[[int], None], part: bytes
) -> InferenceError | None:
    """Why this part makes the body invalid, if it does; the rest is then still read and dropped."""
    try:
        hold(len(part))
        if shape is not None:
            await count(part, shape)
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


def _ratelimit_headers(reservation: Reservation | None) -> Headers:
    if reservation is None:
        return ()
    return [
        header for what, room in reservation.rooms.items() for header in _room_headers(what, room)
    ]


def _room_headers(what: str, room: Room) -> Headers:
    figures = {"limit": room.limit, "remaining": room.remaining, "reset": openai.span(room.reset_s)}
    return [
        (f"x-ratelimit-{figure}-{what}".encode(), str(value).encode())
        for figure, value in figures.items()
    ]


def parse_json(kind: type[Any], body: bytes) -> Any:
    """Decode a small body.

    Raises:
        InvalidRequest: it is not valid JSON of this type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid: {error}.") from None
