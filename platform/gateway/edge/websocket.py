"""One websocket, tightly bounded until its client is authenticated.

A thin layer over uvicorn's protocol. `websockets` parses a frame in some 15 us of Python, and one
read of the socket can contain 40,000 of them, so a client has a budget of frames. Only small
messages are accepted until the application has seen a ticket or a token and raises the bound
(`inference.gateway.sockets.trust`).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import structlog
from uvicorn import Config
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode
from websockets.http11 import Request

from gateway.edge.bounds import EdgeBounds
from gateway.edge.census import Slot
from gateway.edge.http import Joined, answer_of, unsent_bytes
from gateway.edge.timeouts import WriteTimeout
from inference.errors import InvalidRequest
from inference.gateway.sockets import TRUST

log = structlog.get_logger(__name__)

STRANGERS_BYTES = 8 << 10
"""The largest message of an unauthenticated client: a ticket has at most 4 KiB."""
PIECE_BYTES = 1 << 10
"""The parser is fed at most this much at once: 170 of the smallest frames."""
MAX_JOINED_BYTES = 64 << 10
"""Messages of this size together are written at once, so that a slow client is noticed."""


class FrameBudget:
    """A budget of frames. Sans-IO: `now` is a monotonic time in seconds."""

    BURST = 256
    PER_S = 50
    FREE_BYTES = 4 << 10
    """A large message may come in frames of that size."""

    def __init__(self, now: float) -> None:
        self._left, self._at = float(self.BURST), now

    def spend(self, frames: int, size: int, now: float) -> bool:
        """Spend `frames` frames of `size` bytes in total; returns whether the budget sufficed."""
        earned = (now - self._at) * self.PER_S + size / self.FREE_BYTES
        self._left, self._at = min(self.BURST, self._left + earned) - frames, now
        return self._left >= 0


class JoinedMessages(Joined):
    """A transport that joins what is written to it in one iteration of the event loop. A gateway
    sends an engine a message for each request, and ten of them may arrive in one iteration."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
        self._loop = loop
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        """Write it at the end of this iteration."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        super().write(data)
        self._bytes += len(data)
        if self._bytes >= MAX_JOINED_BYTES:
            self.flush()

    def close(self) -> None:
        """Write what is joined, and close the transport."""
        self.flush()
        self.transport.close()

    def flush(self) -> None:
        """Write what is joined, unless the connection is lost."""
        if not self.transport.is_closing():
            super().flush()
        self._parts, self._bytes = [], 0


class SocketConnection(WebSocketsSansIOProtocol):
    """A websocket of a server. Takes over the connection and the `slot` of an HttpConnection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: EdgeBounds,
        slot: Slot,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds, self._slot = bounds, slot
        self._write_timeout = WriteTimeout(bounds.write_s)
        self._budget: FrameBudget | None = FrameBudget(self.loop.time())
        self._piece_bytes = 0
        self.conn.max_message_size = STRANGERS_BYTES
        self._timer = self.loop.call_later(bounds.tick_s, self._check_timeouts)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast(Any, JoinedMessages(transport, self.loop)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.leave()
        self._timer.cancel()
        super().connection_lost(exc)

    def _check_timeouts(self) -> None:
        """Called every tick: end the connection if its client doesn't read."""
        self._timer = self.loop.call_later(self._bounds.tick_s, self._check_timeouts)
        awaited = self.transport.is_closing() or not self.writable.is_set()
        unsent = unsent_bytes(self.transport) if awaited else 0
        if self._write_timeout.expired(unsent, self.loop.time()):
            log.info("client_reads_nothing", bytes=unsent)
            self.transport.abort()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"][TRUST] = {"trust": self._trust}

    def _trust(self, max_message_bytes: int, *, paced: bool) -> None:
        self.conn.max_message_size = max_message_bytes
        if not paced:
            self._budget = None

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # else uvicorn logs that answer as an error

    def data_received(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self.transport.is_closing():
            piece = data[at : at + PIECE_BYTES] if self._budget else data[at:]
            at, self._piece_bytes = at + len(piece), len(piece)
            super().data_received(piece)
            if self.conn.handshake_exc is not None and not self.handshake_initiated:
                self._refuse_handshake()

    def _refuse_handshake(self) -> None:
        """Answer the invalid handshake, which uvicorn would not."""
        self.handshake_initiated = True
        answer = b"".join(self.conn.data_to_send())
        refused = InvalidRequest("The websocket handshake is not valid.")
        self.transport.write(answer or answer_of(refused))
        self.transport.close()

    def handle_events(self) -> None:
        frames, now = len(self.conn.events), self.loop.time()
        if self._budget is None or self._budget.spend(frames, self._piece_bytes, now):
            return super().handle_events()
        log.info("socket_too_fast", frames=frames)
        self.conn.fail(CloseCode.POLICY_VIOLATION, "too many frames")
        return self.handle_parser_exception()
