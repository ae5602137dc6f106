"""One HTTP connection, bounded before anything is parsed. A thin layer over uvicorn's protocol.

The parser (llhttp) has no bounds: it collects a header in quadratic time however long it is, and
accepts any number of headers, chunks and pipelined requests. So it is fed small pieces, and its
progress is checked after each. `timeouts` determines what a client has to send, and by when.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog
from httptools import HttpParserError
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from gateway.edge.bounds import (
    LINGER_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_URL_BYTES,
    MIN_CHUNK_BYTES,
    SMALL_CHUNKS,
    EdgeBounds,
)
from gateway.edge.census import Census, Slot
from gateway.edge.proxies import Proxies
from gateway.edge.timeouts import Expected, ReadTimeout, WriteTimeout
from inference.errors import (
    HeadersTooLarge,
    HttpVersionNotSupported,
    InferenceError,
    InvalidRequest,
    RequestTimeout,
    UnknownTransferCoding,
    UriTooLong,
)
from inference.ids import new_id
from inference.operations.error_shapes import OPENAI

log = structlog.get_logger(__name__)

VERSIONS = ("1.0", "1.1")
"""HTTP versions that are served; the parser also accepts 0.9 and 2.0."""

CHECKED = frozenset({len(b"host"), len(b"transfer-encoding")})
"""Lengths of the names of headers that are checked here."""

PIECE_BYTES = 16 << 10
"""The parser is fed at most this much at once."""


class HttpConnection(HttpToolsProtocol):
    """A connection of a server, which share `bounds`, `census` and `proxies`."""

    def __init__(
        self,
        bounds: EdgeBounds,
        census: Census,
        proxies: Proxies,
        *,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds, self._census, self._proxies = bounds, census, proxies
        self._read_timeout = ReadTimeout(bounds, self.loop.time())
        self._write_timeout = WriteTimeout(bounds.write_s)
        self._slot: Slot | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deaf = False
        """Received data is ignored: the connection was refused, or is a websocket now."""
        self._refusal: InferenceError | None = None
        """Set by a callback of the parser, which does not distinguish exceptions."""
        self._head_bytes = self._headers = self._hosts = 0
        self._event = False
        """Whether the parser has found anything in the present piece."""
        self._unparsed_bytes = 0
        """Bytes fed to the parser since it last found something."""
        self._chunks = self._body_bytes = self._discarded_bytes = 0

    # --- The connection --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = (get_remote_addr(transport) or ("", 0))[0]
        address = None if self._proxies.trust(peer) else peer
        try:
            self._slot = self._census.enter(address, transport.abort)
        except InferenceError as error:
            self._deaf = True
            transport.write(answer_of(error))
            transport.close()
            return
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._bounds.tick_s, self._check_timeouts)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slot is None:  # it was never admitted
            return
        self._slot.leave()
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check_timeouts(self) -> None:
        """Called every tick: end the connection if its client takes too long."""
        now = self.loop.time()
        self._timer = self.loop.call_later(self._bounds.tick_s, self._check_timeouts)
        expected = self._read_timeout.expected
        if self.flow.read_paused and expected in (Expected.HEAD, Expected.BODY):
            self._expect(expected)
        closing = self.transport.is_closing()
        awaited = closing or self.flow.write_paused
        unsent = unsent_bytes(self.transport) if awaited else 0
        if self._write_timeout.expired(unsent, now):
            log.info("client_reads_nothing", bytes=unsent)
            self.transport.abort()
        elif not closing and self._read_timeout.expired(now):
            if not self._read_timeout.excused(unread_bytes(self.transport)):
                self._give_up()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing: `_check_timeouts` closes idle connections, and knows of bytes still unread."""

    def _give_up(self) -> None:
        match self._read_timeout.expected:
            case Expected.HEAD if self._head_bytes or self._unparsed_bytes:
                most = self._bounds.header_s
                self._refuse(
                    RequestTimeout(f"The request headers did not arrive within {most:g} s.")
                )
            case Expected.BODY:
                most = self._bounds.body_s
                self._refuse(RequestTimeout(f"No part of the request body arrived for {most:g} s."))
            case Expected.CLOSE:
                self.transport.abort()
            case _:
                self.transport.close()

    def _expect(self, expected: Expected) -> None:
        assert self._slot is not None
        self._read_timeout.expect(expected, self.loop.time())
        if expected is Expected.NOTHING or (expected is Expected.HEAD and self._is_answering()):
            self._slot.works()
        else:
            self._slot.waits()

    def answer_is_last(self) -> None:
        """Close the connection after the present answer, if its request has arrived entirely: the
        rest of a body would reset the connection, and the client might lose the answer."""
        if self._is_answering() and not self.cycle.more_body:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Like uvicorn, but a request that has begun to arrive gets its answer."""
        self._census.closing = True
        if self._is_answering() or self.transport.is_closing() or not self._has_begun():
            super().shutdown()

    def _has_begun(self) -> bool:
        """Whether a part of the next request has arrived."""
        expected = self._read_timeout.expected
        if expected is Expected.HEAD and (self._head_bytes or self._unparsed_bytes):
            return True
        return expected in (Expected.HEAD, Expected.IDLE) and unread_bytes(self.transport) > 0

    # --- What arrives ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._read_timeout.expected is Expected.IDLE:
            self._expect(Expected.HEAD)
        for at in range(0, len(data), PIECE_BYTES):
            if self._deaf:
                return self._discard(len(data) - at)
            self._feed(data[at : at + PIECE_BYTES])
        return None

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > LINGER_BYTES:
            self.transport.abort()

    def _feed(self, piece: bytes) -> None:
        self._event = False
        super().data_received(piece)
        self._unparsed_bytes = 0 if self._event else self._unparsed_bytes + len(piece)
        if self._unparsed_bytes > self._bounds.header_bytes and not self._deaf:
            self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        self._event = True
        if len(self.pipeline) >= MAX_PIPELINED:
            self._raise(InvalidRequest(f"At most {MAX_PIPELINED} requests can be pipelined."))
        super().on_message_begin()
        self._head_bytes = self._headers = self._hosts = 0
        if self._read_timeout.expected is not Expected.HEAD:
            self._expect(Expected.HEAD)

    def on_url(self, url: bytes) -> None:
        self._event = True
        super().on_url(url)
        self._head_bytes += len(url)
        if len(self.url) > MAX_URL_BYTES:
            self._raise(UriTooLong(f"The URL has more than {MAX_URL_BYTES} bytes."))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._event = True
        self._head_bytes += len(name) + len(value) + len(": \r\n")
        self._headers += 1
        if self._head_bytes > self._bounds.header_bytes:
            self._raise(self._too_large())
        if self._headers > MAX_HEADERS:
            self._raise(HeadersTooLarge(f"The request has more than {MAX_HEADERS} headers."))
        # Trailers are ignored: the headers have been read by then.
        if self._read_timeout.expected is Expected.HEAD:
            if len(name) in CHECKED:
                self._check_header(name.lower(), value)
            super().on_header(name, value)

    def _check_header(self, name: bytes, value: bytes) -> None:
        """Refuse what the parser accepts, or reports like any other mistake."""
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            coding = value.decode("latin-1")
            self._raise(
                UnknownTransferCoding(
                    f"The `Transfer-Encoding` {coding} is not supported: only `chunked` is."
                )
            )

    def _check_head(self) -> None:
        version = self.parser.get_http_version()
        if version not in VERSIONS:
            self._raise(HttpVersionNotSupported())
        if self._hosts > 1 or (self._hosts == 0 and version == "1.1"):
            self._raise(
                InvalidRequest(f"The request has {self._hosts} `Host` headers: it must have one.")
            )

    def on_headers_complete(self) -> None:
        self._event = True
        self._check_head()
        earlier = self.cycle
        super().on_headers_complete()
        if self.cycle is not earlier:
            self.cycle.__class__ = HttpAnswer if self.scope["http_version"] == "1.1" else UntilClose
        self._expect(Expected.BODY)

    def on_chunk_header(self) -> None:
        self._event = True
        self._chunks += 1
        if self._chunks > SMALL_CHUNKS + self._body_bytes // MIN_CHUNK_BYTES:
            self._raise(InvalidRequest("The chunks of the body are too small."))

    def on_body(self, body: bytes) -> None:
        self._event = True
        self._body_bytes += len(body)
        if self._read_timeout.expected is Expected.BODY:
            self._expect(Expected.BODY)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._event = True
        super().on_message_complete()
        if self._census.closing:
            self.answer_is_last()
        surplus = self._read_timeout.expected is Expected.SURPLUS
        self._expect(Expected.IDLE if surplus else Expected.NOTHING)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._chunks = self._body_bytes = 0
        if self._is_answering():  # the next, pipelined request
            return
        match self._read_timeout.expected:
            case Expected.BODY:
                self._expect(Expected.SURPLUS)
            case Expected.NOTHING:
                self._expect(Expected.IDLE)

    def handle_websocket_upgrade(self) -> None:
        """Like uvicorn, but without cookies: no application reads them, and `websockets`, which
        parses the head again, accepts no line of more than 8 KiB."""
        if self._is_answering():  # it could no longer be told that its client disconnects
            return self._refuse(
                InvalidRequest(
                    "A websocket cannot be opened while another request is running on the "
                    "connection."
                )
            )
        headers = [(name, value) for name, value in self.scope["headers"] if name != b"cookie"]
        self.scope["headers"] = headers
        protocol: Any = self.config.ws_protocol_class
        taking_over: Any = partial(protocol, bounds=self._bounds, slot=self._slot)
        self.ws_protocol_class = taking_over
        assert self._slot is not None
        self._slot.works()
        self._deaf = True
        self._stop_timer()
        super().handle_websocket_upgrade()
        return None

    # --- Refusing --------------------------------------------------------------------------------

    def _too_large(self) -> HeadersTooLarge:
        most = self._bounds.header_bytes
        return HeadersTooLarge(f"The request's headers have more than {most} bytes.")

    def _raise(self, error: InferenceError) -> None:
        """Raise out of the parser; uvicorn then calls `send_400_response`."""
        self._refusal = error
        raise error

    def send_400_response(self, msg: str) -> None:
        found = sys.exception()  # the parser's, which names no other kind of mistake
        if isinstance(found, HttpParserError) and "Invalid HTTP version" in str(found):
            return self._refuse(HttpVersionNotSupported())
        self._refuse(self._refusal or InvalidRequest("The request is not valid HTTP."))
        return None

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: InferenceError) -> None:
        """Answer with the error unless another answer has begun, and ignore what the client sends
        from now on. If its address is refused repeatedly, the answer is delayed and nothing is read
        until then."""
        assert self._slot is not None
        self._deaf = True
        self._expect(Expected.CLOSE)
        if self._is_answering():
            if self.cycle.response_started or self.pipeline:
                return self.transport.abort()
            self.cycle.disconnected, self.cycle.waiting_for_100_continue = True, False
            self.cycle.message_event.set()
        if hold_s := self._slot.hold_s(self.loop.time()):
            self.flow.pause_reading()
            self.loop.call_later(hold_s, self._say, error)
        else:
            self._say(error)
        return None

    def _say(self, error: InferenceError) -> None:
        if self.transport.is_closing():
            return
        self._expect(Expected.CLOSE)
        self.flow.resume_reading()
        self.transport.write(answer_of(error))
        self.transport.write_eof()


def unread_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes that have arrived from the client and that the transport has not read yet."""
    return _queued(transport, termios.FIONREAD)


def unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes written that the client's side has not received yet. The kernel buffers some megabytes,
    and accepts more only when a good part of them is free, although a slow client reads
    meanwhile; hence its queue is counted."""
    return transport.get_write_buffer_size() + _queued(transport, termios.TIOCOUTQ)


def _queued(transport: asyncio.BaseTransport, direction: int) -> int:
    """The length of one of the kernel's queues of the connection."""
    held = fcntl.ioctl(transport.get_extra_info("socket").fileno(), direction, bytes(4))
    return int.from_bytes(held, sys.byteorder)


class HttpAnswer(RequestResponseCycle):
    """An answer whose head is written together with the beginning of its body, because each write
    is a system call and a packet."""

    _head: Any = None

    def send(self, message: Any) -> Coroutine[Any, Any, None]:
        if self.response_started:
            return super().send(message)
        return self._begin(message)

    async def _begin(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        joined: Any = Joined(self.transport)
        self.transport = joined
        try:
            if self._head is not None:
                await super().send(self._head)
            await super().send(message)
        finally:
            self.transport = joined.transport
            joined.flush()


class Joined:
    """Joins what is written to a transport, until `flush`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._parts: list[bytes] = []
        self._closes = False

    def write(self, data: bytes) -> None:
        """Write it later."""
        self._parts.append(data)

    def close(self) -> None:
        """Close the transport later."""
        self._closes = True

    def flush(self) -> None:
        """Write everything at once, and close the transport if that was asked for."""
        if self._parts:
            self.transport.write(b"".join(self._parts))
        if self._closes:
            self.transport.close()


class UntilClose(HttpAnswer):
    """The answer to an HTTP/1.0 client, which does not support chunks: an answer without a length
    ends with the connection."""

    _unsized = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            if b"content-length" not in names:
                self._unsized, self.chunked_encoding = True, False
        elif self._unsized:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def answer_of(error: InferenceError) -> bytes:
    """A complete HTTP answer with this error, after which the connection is closed."""
    id = new_id()
    log.info("request", request_id=id, status=error.http_status, error=error.code)
    body = OPENAI.body(error)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-request-id": f"req_{id}",
        "connection": "close",
    }
    if error.retry_after_s is not None:
        headers["retry-after"] = f"{error.retry_after_s:g}"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[error.http_status] + lines.encode() + b"\r\n" + body
