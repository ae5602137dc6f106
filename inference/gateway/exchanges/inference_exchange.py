"""A request to the inference API and its answer: an exchange with a grant, a call, a stream, limits
and a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from inference.errors import InferenceError, Unavailable
from inference.gateway import idempotency
from inference.gateway.exchanges.exchange import (
    ADAPTER_HEADER,
    EVENT_STREAM,
    Exchange,
    Headers,
    Receive,
    Scope,
    Send,
)
from inference.gateway.idempotency import Recording
from inference.gateway.loop_iteration import LoopIteration
from inference.gateway.records.log_line import Asked
from inference.gateway.requests.stream import Stream
from inference.interfaces.answers import KeptAnswer
from inference.interfaces.directory import Grant
from inference.interfaces.limiter import Reservation, Room
from inference.operations import openai
from inference.operations.operation import Call, Operation
from inference.tracing import Span

REPLAYED = (b"idempotent-replayed", b"true")


class AnswerStorage(Protocol):
    """Stores the answers to requests."""

    async def whole(self, id: str, body: bytes) -> bytes:
        """Store the answer to the request of this id; returns the answer as it is to be sent, which
        says whether it was stored."""

    async def ending(self, id: str, events: bytes) -> bytes:
        """As `whole`, for a stream: its last event has the answer."""


class InferenceExchange(Exchange):
    """One request with a key, perhaps to generate something, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self.grant: Grant | None = None
        self.checked: LoopIteration | None = None
        """The iteration of the event loop in which the grant was looked up."""
        self.call: Call | None = None
        self.stream: Stream | None = None
        self.span: Span | None = None
        self.failed: Callable[[InferenceError], bytes] = lambda _: b""
        """The framing's event for an error within a stream; empty where `errors` makes it."""
        self.storage: AnswerStorage | None = None
        """Stores the answer, if it is to be stored."""
        self.is_disconnected = False
        """Its client has disconnected; not known of all requests."""
        self.reservation: Reservation | None = None
        """Source of the `x-ratelimit` headers."""

    def asked(self, operation: Operation | None) -> Asked:
        """What is known about the request, for its record."""
        return Asked(
            id=self.id,
            surface="api",
            began=self.began,
            method=self.method,
            path=self.path,
            status=self.status,
            operation=operation,
            grant=self.grant,
            call=self.call,
            stream=self.stream,
            span=self.span,
        )

    @property
    def traceparent(self) -> str:
        """The client's `traceparent` header, which makes the request part of its trace; may be
        empty."""
        header: bytes = self._headers.get(b"traceparent", b"")
        return header.decode("latin-1")

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The client's headers, by lower-case name."""
        return self._headers

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

    @property
    def speaks_anthropic(self) -> bool:
        """Whether it has the header that all requests of Anthropic's SDKs have."""
        return b"anthropic-version" in self._headers

    def common_headers(self) -> list[tuple[bytes, bytes]]:
        found = super().common_headers()
        if self.reservation is not None:
            for what, room in self.reservation.rooms.items():
                found += _room_headers(what, room)
        if self.stream is not None and (adapter := self.stream.request.target.adapter):
            found.append((ADAPTER_HEADER, adapter.name.partition("/")[2].encode()))
        return found

    async def reply(self, status: int, data: bytes, headers: Headers = ()) -> None:
        try:
            await super().reply(status, data, headers)
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

    def last_event(self, error: InferenceError) -> bytes:
        return self.failed(error) or super().last_event(error)


def _room_headers(what: str, room: Room) -> list[tuple[bytes, bytes]]:
    figures = {"limit": room.limit, "remaining": room.remaining, "reset": openai.span(room.reset_s)}
    return [
        (f"x-ratelimit-{figure}-{what}".encode(), str(value).encode())
        for figure, value in figures.items()
    ]
