"""One HTTP request and its answer, over plain ASGI.

Not a Django view: a streamed token costs one `send` here and no thread, middleware or response
object.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

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
from inference.gateway.fleet.hub import new_id
from inference.gateway.idempotency import Recording
from inference.gateway.requests.stream import Stream
from inference.gateway.tick import Tick
from inference.grants import Grant, KeptAnswer, Reservation, Room
from inference.operations import openai
from inference.operations.bodies.shape import Shape
from inference.operations.call import Call
from inference.operations.error_shapes import OPENAI, ErrorShape
from inference.tracing import Span

if TYPE_CHECKING:
    from inference.gateway.stored.responses import Keeping

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

BODY_TIMEOUT_S = 60.0
"""A client that takes longer to send its body is cut off."""
DISCARD_FACTOR = 8
"""A body this many times over the limit is no longer read to its end before the 413: clients that
write before they read would miss the answer otherwise."""

MAX_RETRY_AFTER_S = 60
"""OpenAI's SDKs take no notice of a `retry-after` above it and come back at once."""
KEY_HEADERS = (b"api-key", b"x-api-key")
"""Where clients of other APIs have their key, beside `Authorization`."""
PLAIN = (b"", b"identity")
"""Content encodings of a body that is what it is."""

JSON: Headers = [(b"content-type", b"application/json")]
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
REPLAYED = (b"idempotent-replayed", b"true")


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
        """The turn of the event loop in which the grant was looked up."""
        self.call: Call | None = None
        self.stream: Stream | None = None
        self.span: Span | None = None
        self.errors: ErrorShape = OPENAI
        """How its client is told of errors."""
        self.failed: Callable[[InferenceError], bytes] = lambda _: b""
        """What its framing says of one in a stream; empty where `errors` say it."""
        self.keeping: Keeping | None = None
        """Stores its answer, if that is to be stored."""
        self.reservation: Reservation | None = None
        """For the `x-ratelimit` headers."""
        self.began = time.monotonic()
        self._receive, self._send = receive, send
        self._all_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._headers = dict(self._all_headers)
        self._query: bytes = scope.get("query_string", b"")

    @property
    def shown_id(self) -> str:
        """Its id, as clients see it in headers."""
        return f"req_{self.id}"

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def traceparent(self) -> str:
        """By which its client wants it to be a part of a trace; empty if it doesn't."""
        header: bytes = self._headers.get(b"traceparent", b"")
        return header.decode("latin-1")

    @property
    def query(self) -> dict[str, str]:
        """What the address asks for, by name; of what is there twice the last."""
        return dict(parse_qsl(self._query.decode("latin-1"), keep_blank_values=True))

    def require_method(self, *methods: str) -> None:
        """Raise MethodNotAllowed unless it is one of these."""
        if self.method not in methods:
            raise MethodNotAllowed(
                f"{self.path} takes {' or '.join(methods)} only.", allowed=methods
            )

    @property
    def shows_key(self) -> bool:
        """Whether any header has an API key, or several have."""
        return any(_key_in(name, value) for name, value in self._all_headers)

    def api_key(self) -> str:
        """The API key, of whichever header has it.

        Raises:
            InvalidApiKey: there is none, or headers have different ones.
        """
        found = {key for name, value in self._all_headers if (key := _key_in(name, value))}
        if not found:
            raise InvalidApiKey(
                "You didn't provide an API key: send it as `Authorization: Bearer lk_...`."
            )
        if len(found) > 1:
            raise InvalidApiKey(
                "The headers of this request have different API keys: send one, as "
                "`Authorization: Bearer lk_...`."
            )
        return found.pop().decode("latin-1")

    def require_token(self, token: str, name: str) -> None:
        """See that the caller shows this token, which is called `name`; in constant time.

        Raises:
            InvalidApiKey: it doesn't.
        """
        if not hmac.compare_digest(self.api_key().encode(), token.encode()):
            raise InvalidApiKey(f"This address takes the {name} as its bearer.")

    def idempotency_key(self) -> str | None:
        """The `Idempotency-Key`, if there is one.

        Raises:
            InvalidRequest: it can't be one.
        """
        header = self._headers.get(idempotency.HEADER)
        return None if header is None else idempotency.name_of(header)

    def record(self, recording: Recording) -> None:
        """From now on what is sent goes through the recording."""
        self._send = recording.tee(self._send)

    async def body(
        self, limit_bytes: int, timeout_s: float = BODY_TIMEOUT_S, shape: Shape | None = None
    ) -> bytes:
        """The whole request body; its `shape` is counted as it arrives.

        Raises:
            UnsupportedMediaType: it is compressed.
            PayloadTooLarge: it is over the limit.
            InvalidRequest: it holds too much.
            RequestTimeout: it did not arrive in time.
            ClientDisconnected: the client went away in the middle of it.
        """
        if (encoding := self._headers.get(b"content-encoding", b"").lower()) not in PLAIN:
            raise UnsupportedMediaType(
                f"The body's `Content-Encoding` is {encoding.decode('latin-1')}: send it "
                "uncompressed."
            )
        try:
            async with asyncio.timeout(timeout_s):
                return await self._body(limit_bytes, shape)
        except TimeoutError:
            raise RequestTimeout(
                f"The request body did not arrive within {timeout_s:g} s."
            ) from None

    async def _body(self, limit_bytes: int, shape: Shape | None) -> bytes:
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
                    f"The request body is over this server's limit of {limit_bytes} bytes."
                )
            if refusal is None:
                refusal = _refusal(shape, part)
                parts.append(part)
        if refusal is not None:
            raise refusal
        return b"".join(parts)

    async def disconnected(self) -> None:
        """Wait until the client goes away. Only once the body was read."""
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
        except Unavailable:  # of the recording, which has not sent anything
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
        """Answer with an error, as far as an answer can still be given."""
        if isinstance(error, ClientDisconnected):
            self.status = self.status or error.http_status
        elif self.status:
            event = self.failed(error) or self.errors.event(error, self.shown_id)
            await self.write(event, more=False)
        else:
            body = self.errors.body(error, self.shown_id)
            await self.reply(error.http_status, body, _error_headers(error))


def _key_in(name: bytes, value: bytes) -> bytes:
    """The API key in a header; empty if there is none."""
    if name == b"authorization":
        scheme, _, secret = value.strip().partition(b" ")
        return secret.strip() if scheme.lower() == b"bearer" else b""
    return value.strip() if name in KEY_HEADERS else b""


def _refusal(shape: Shape | None, part: bytes) -> InferenceError | None:
    """Why no more of a body is kept after this part, which is read to its end all the same."""
    try:
        if shape is not None:
            shape.feed(part)
    except InvalidRequest as error:
        return error
    return None


def _error_headers(error: InferenceError) -> Headers:
    if isinstance(error, MethodNotAllowed) and error.allowed:
        yield b"allow", ", ".join(error.allowed).encode()
    if error.http_status == 401:
        yield b"www-authenticate", b"Bearer"
    yield from _retry_headers(error)


def _retry_headers(error: InferenceError) -> Headers:
    """When to try again, or that it can't help: OpenAI's SDKs would after any 409 and 429."""
    if error.retry_after_s is not None:
        seconds = min(MAX_RETRY_AFTER_S, max(1, math.ceil(error.retry_after_s)))
        yield b"retry-after", str(seconds).encode()
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
    """Decode a small trusted-shape body.

    Raises:
        InvalidRequest: it is not of that shape.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid: {error}.") from None
