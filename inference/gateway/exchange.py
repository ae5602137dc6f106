"""One HTTP request and its answer, over plain ASGI.

Not a Django view: a streamed token costs one `send` here and no thread, middleware or response
object.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from inference.errors import (
    ClientDisconnected,
    InferenceError,
    InvalidApiKey,
    InvalidRequest,
    MethodNotAllowed,
    PayloadTooLarge,
    RequestTimeout,
)
from inference.gateway import idempotency
from inference.gateway.hub import new_id
from inference.gateway.idempotency import Recording
from inference.gateway.tick import Tick
from inference.grants import Grant, KeptAnswer, Reservation, Room
from inference.operations import openai

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

BODY_TIMEOUT_S = 60.0
"""A client that takes longer to send its body is cut off."""
DISCARD_FACTOR = 8
"""A body this many times over the limit is no longer read to its end before the 413: clients that
write before they read would miss the answer otherwise."""

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
        self.model: str | None = None
        self.reservation: Reservation | None = None
        """For the `x-ratelimit` headers."""
        self._began = time.monotonic()
        self._receive, self._send = receive, send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def require_method(self, *methods: str) -> None:
        """Raise MethodNotAllowed unless it is one of these."""
        if self.method not in methods:
            raise MethodNotAllowed(f"{self.path} takes {' or '.join(methods)} only.")

    def bearer(self) -> str:
        """The API key.

        Raises:
            InvalidApiKey: there is none.
        """
        scheme, _, secret = self._headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not secret.strip():
            raise InvalidApiKey(
                "You didn't provide an API key: send it as `Authorization: Bearer lk_...`."
            )
        return secret.strip().decode("latin-1")

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

    async def body(self, limit_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> bytes:
        """The whole request body.

        Raises:
            PayloadTooLarge: it is over the limit.
            RequestTimeout: it did not arrive in time.
            ClientDisconnected: the client went away in the middle of it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._body(limit_bytes)
        except TimeoutError:
            raise RequestTimeout(
                f"The request body did not arrive within {timeout_s:g} s."
            ) from None

    async def _body(self, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= limit_bytes * DISCARD_FACTOR:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= limit_bytes:
                parts.append(part)
        if size > limit_bytes:
            raise PayloadTooLarge(
                f"The request body is over this server's limit of {limit_bytes} bytes."
            )
        return b"".join(parts)

    async def disconnected(self) -> None:
        """Wait until the client goes away. Only once the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, headers: Headers) -> None:
        """Write the status and the headers that every answer has."""
        self.status = status
        common = [
            (b"x-request-id", f"req_{self.id}".encode()),
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
        await self.write(b"" if self.method == "HEAD" else data, more=False)

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
            await self.write(openai.error_event(error), more=False)
        else:
            await self.reply(error.http_status, openai.error_body(error), _retry_headers(error))


def _retry_headers(error: InferenceError) -> Headers:
    """When to try again, or that it can't help: OpenAI's SDKs would after any 409 and 429."""
    if error.retry_after_s is not None:
        return [(b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode())]
    return [(b"x-should-retry", b"false")] if error.http_status < 500 else []


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
