"""`/v1/responses` as a websocket: one response after another, each may continue the last one.

A message `{"type": "response.create", ...}` has the fields of a body; the events of the stream come
back, one per message. Every turn is a `POST` to the HTTP edge, made here from the message and the
headers with which the socket's client authenticated. So limits, bill, moves and errors are those of
any request, and the key is checked again in each turn.

A message with `generate: false` only begins a conversation: it is checked, and answered with an
empty response, which the next turn can continue.

`previous_response_id` may name the previous response on the same socket: its items are kept in
memory while the socket is open (`last_responses.py`). A turn that fails discards it, because its
client can't know how far it came. It may also name a stored response (`stored/responses.py`).
Responses of other tenants are never found.

One turn runs at a time, and one message may wait.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from typing import Any

import msgspec

from inference.errors import InferenceError, InvalidRequest, RateLimitExceeded, UnknownResponse
from inference.gateway.exchanges.bodies import Bodies
from inference.gateway.exchanges.callers import Callers
from inference.gateway.exchanges.exchange import Receive, Scope, Send, refuse_socket
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.http import OpenAIServer
from inference.gateway.last_responses import LastResponses, ResponseItems
from inference.gateway.loop_iteration import pause
from inference.gateway.sockets import trust
from inference.gateway.stored.responses import StoredResponseApi
from inference.ids import new_id
from inference.interfaces.directory import Grant
from inference.key_headers import KEY_HEADERS
from inference.link.accounts import Usage
from inference.operations.bodies.reading import decode, decode_part
from inference.operations.bodies.shape import BodyShape
from inference.operations.error_shapes import OPENAI
from inference.operations.openai import NULL
from inference.operations.responses.items import joined, listed
from inference.operations.responses.responses import RESPONSES
from inference.shared_capacity import TENANT_SHARE, SharedCapacity

GOING_AWAY = 1012
"""Websocket close code: connect to another gateway."""
MAX_SOCKETS = 512
"""Open at the same time in one process, a quarter of them of one tenant: each may hold a message of
the largest size that is half here."""
MARGIN_BYTES = 64 << 10
LIFE_S = 3600.0
"""Longest life of a socket, as with OpenAI; between two turns a client runs its tools."""
KEPT_HEADERS = {b"authorization", b"traceparent", *KEY_HEADERS}
"""Headers of the socket that each turn's request has."""
UNSERVED = {
    "background": "events are sent over this socket",
    "conversation": "continue a response with `previous_response_id`",
    "stream_id": "a socket generates one response at a time",
}
"""Fields of a message that are refused, and why."""
HARMLESS = {
    "background": (b"null", b"false"),
    "conversation": (b"null",),
    "stream_id": (b"null",),
}
ENDINGS = (b"response.completed", b"response.incomplete")
"""Events after which the next turn can continue the response."""


class _Response(msgspec.Struct):
    id: str
    output: msgspec.Raw


class _Ended(msgspec.Struct):
    response: _Response


_message = msgspec.json.Decoder(dict[str, msgspec.Raw])
_name = msgspec.json.Decoder(str | None)
_ended = msgspec.json.Decoder(_Ended)
_json = msgspec.json.Encoder().encode


class ResponsesSocket:
    """The ASGI application."""

    def __init__(
        self,
        server: OpenAIServer,
        callers: Callers,
        closed: asyncio.Event,
        *,
        kept_bytes: int,
        life_s: float = LIFE_S,
    ) -> None:
        """Once `closed` is set, each socket is closed after its current turn. `kept_bytes` bounds
        the items kept between turns, of all sockets together."""
        self._server, self._callers, self._closed = server, callers, closed
        self._life_s = life_s
        self._last, self._open = LastResponses(kept_bytes), SharedCapacity[str](MAX_SOCKETS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        http = _as_http(scope)
        try:
            grant = await self._callers.identify(InferenceExchange(http, receive, send))
        except InferenceError as error:
            return await refuse_socket(scope, receive, send, error)
        with self._open.holding(grant.tenant, 1) as has_room:
            if not has_room:
                most = MAX_SOCKETS // TENANT_SHARE
                message = f"Tenant `{grant.tenant}` has {most} open sockets, the maximum."
                full = RateLimitExceeded(message, retry_after_s=1)
                return await refuse_socket(scope, receive, send, full)
            # Above the limit of a body, so that a body over that gets an error, not a closed
            # socket.
            trust(scope, self._server.bodies.max_bytes + MARGIN_BYTES, paced=True)
            await send({"type": "websocket.accept"})
            kept = _Kept(self._last, self._server.responses, grant)
            socket = _Socket(self._server, http, receive, send, kept)
            try:
                await socket.run(self._closed, self._life_s)
            finally:
                kept.forget()


class _Kept:
    """The last response of one socket."""

    def __init__(self, last: LastResponses, responses: StoredResponseApi, grant: Grant) -> None:
        self._last, self._responses = last, responses
        self.tenant, self._tenant_id = grant.tenant, grant.tenant_id

    async def items_of(self, id: str) -> ResponseItems | None:
        """All items up to the end of this response; None if there is no such response."""
        found = self._last.find(self._tenant_id, self)
        if found is not None and found.id == id:
            return found
        return await self._responses.items_of(self._tenant_id, id)

    def keep(self, response: ResponseItems) -> None:
        self._last.keep(self._tenant_id, self, response)

    def forget(self) -> None:
        self._last.forget(self._tenant_id, self)


class _Socket:
    """One open socket."""

    def __init__(
        self, server: OpenAIServer, http: Scope, receive: Receive, send: Send, kept: _Kept
    ) -> None:
        self._server, self._http, self._kept = server, http, kept
        self._receive, self._send = receive, send
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._disconnected = asyncio.Event()

    async def run(self, closed: asyncio.Event, life_s: float) -> None:
        """Serve the socket until its client leaves, `closed` is set or its life is over."""
        tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._leave(closed, life_s)),
        ]
        try:
            while (turn := await self._next()) is not None:
                await self._take(turn)
            if not self._disconnected.is_set():
                reason = "come again"
                await self._send({"type": "websocket.close", "code": GOING_AWAY, "reason": reason})
        finally:
            for task in tasks:
                task.cancel()
            while not self._messages.empty():
                self._release(self._messages.get_nowait() or b"")

    async def _read(self) -> None:
        while (event := await self._receive())["type"] == "websocket.receive":
            message = event.get("bytes") or (event.get("text") or "").encode()
            try:
                self._wait(message)
            except InferenceError as error:
                await self._fail(error)
            del message, event
        self._disconnected.set()
        self._messages.put_nowait(None)

    def _wait(self, message: bytes) -> None:
        """Let the message wait for its turn.

        Raises:
            InvalidRequest: another one waits already.
            Overloaded: too many bytes wait.
        """
        if self._messages.qsize():
            raise InvalidRequest(
                "A socket generates one response at a time, and another message is already waiting."
            )
        self._server.bodies.hold(self._kept.tenant, len(message))
        self._messages.put_nowait(message)

    def _release(self, message: bytes) -> None:
        self._server.bodies.release(self._kept.tenant, len(message))

    async def _leave(self, closed: asyncio.Event, life_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(life_s):
                await closed.wait()
        self._messages.put_nowait(None)

    async def _next(self) -> _Turn | None:
        """The next turn, which alone holds its message; None if there is no other."""
        if (message := await self._messages.get()) is None:
            return None
        self._release(message)
        return _Turn(message, self._kept, self._server.bodies, self._send, self._disconnected)

    async def _take(self, turn: _Turn) -> None:
        try:
            if not await turn.only_begins():
                await self._server(self._http, turn.receive, turn.send)
        except InferenceError as error:  # of a message that only begins
            await self._fail(error)
        if turn.ended is not None:
            output = listed(bytes(turn.ended.output))
            self._kept.keep(ResponseItems(turn.ended.id, joined(turn.items, output)))
        elif turn.continues:
            self._kept.forget()

    async def _fail(self, error: InferenceError) -> None:
        await _say(self._send, _as_event(error.http_status, OPENAI.body(error)))


_NO_ANSWER = re.compile(rb'"generate"\s*:\s*false')
"""Stands in each message that asks for no answer, and may stand in another."""


class _Turn:
    """One request to the HTTP edge, whose events go to the socket. Its body is made of the message
    when the edge asks for it, so that a wrong message is a wrong body: it is counted, slowed and
    logged as any other."""

    def __init__(
        self, message: bytes, kept: _Kept, bodies: Bodies, send: Send, disconnected: asyncio.Event
    ) -> None:
        self._message: bytes | None = message
        self._kept, self._bodies = kept, bodies
        self._to_client, self._disconnected = send, disconnected
        self._status, self._rest = 0, b""
        self.items = b""
        """All items up to the end of the input."""
        self.continues = False
        """Whether it continues an earlier response."""
        self.ended: _Response | None = None
        """The response, unless it failed."""

    async def only_begins(self) -> bool:
        """Whether the message asks for no answer; if so, it is checked and an empty response is
        sent.

        Raises:
            InferenceError: such a message is not a valid one.
        """
        message = self._message or b""
        if not _NO_ANSWER.search(message) or len(message) > self._bodies.max_bytes:
            return False
        await self._bodies.count(self._kept.tenant, message, BodyShape(RESPONSES.max_numbers))
        if bytes(decode(_message, message).get("generate", NULL)) != b"false":
            return False
        self._message = None
        call, id = RESPONSES.parse(await self._body(message)), new_id()
        framing = RESPONSES.framing(call, id, int(time.time()))
        for event in (framing.opening() + framing.ending(Usage())).split(b"\n\n"):
            await self._pass_on(event)
        return True

    async def receive(self) -> dict[str, Any]:
        """ASGI's `receive`, of a request whose body has arrived.

        Raises:
            InferenceError: the message is not a valid one.
        """
        if (message := self._message) is not None:
            self._message = None
            body = await self._body(message)
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _body(self, message: bytes) -> bytes:
        """The body for the edge; of a message that is too large, the message, unread.

        Raises:
            InvalidRequest: it is not a valid message.
            UnknownResponse: the response that it continues is not known.
        """
        if len(message) > self._bodies.max_bytes:
            return message
        await self._bodies.count(self._kept.tenant, message, BodyShape(RESPONSES.max_numbers))
        fields = _fields_of(message)
        await pause(len(message))
        await self._go_on(fields)
        self.items = listed(bytes(fields.get("input", NULL)))
        return _json(fields)

    async def _go_on(self, fields: dict[str, msgspec.Raw]) -> None:
        """If the message continues a response, put all earlier items in front of its input.
        Mutates `fields`.

        Raises:
            UnknownResponse: the response is neither the last one of this socket nor stored.
        """
        named = decode_part(_name, fields.pop("previous_response_id", NULL), "previous_response_id")
        if named is None:
            return
        if (found := await self._kept.items_of(named)) is None:
            raise UnknownResponse(param="previous_response_id")
        items = joined(found.items, listed(bytes(fields.get("input", NULL))))
        fields["input"] = msgspec.Raw(b"[" + items + b"]")
        self.continues = True

    async def send(self, message: dict[str, Any]) -> None:
        """ASGI's `send`: passes the answer on to the socket."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self._rest += message["body"]
        if self._status == 200:
            *events, self._rest = self._rest.split(b"\n\n")
            for event in events:
                await self._pass_on(event)
        elif not message["more_body"]:
            await _say(self._to_client, _as_event(self._status, self._rest))

    async def _pass_on(self, event: bytes) -> None:
        name, _, data = event.partition(b"\ndata: ")
        if data:  # otherwise it marks the end of an HTTP stream
            if name.removeprefix(b"event: ") in ENDINGS:
                self.ended = _ended.decode(data).response
            await _say(self._to_client, data)


def _fields_of(message: bytes) -> dict[str, msgspec.Raw]:
    """The fields of the message, as those of a body.

    Raises:
        InvalidRequest: the message is not a valid one.
    """
    fields: dict[str, msgspec.Raw] = decode(_message, message)
    if bytes(fields.pop("type", NULL)) != b'"response.create"':
        raise InvalidRequest("`type` must be `response.create`.", param="type")
    if bytes(fields.pop("generate", NULL)) not in (b"null", b"true", b"false"):
        raise InvalidRequest("`generate` must be true or false.", param="generate")
    for name, why in UNSERVED.items():
        if bytes(fields.pop(name, NULL)) not in HARMLESS[name]:
            raise InvalidRequest(f"`{name}` is not supported: {why}.", param=name)
    fields["stream"] = msgspec.Raw(b"true")
    return fields


async def _say(send: Send, event: bytes) -> None:
    with suppress(OSError, RuntimeError):  # the client is gone, which the reading task notices
        await send({"type": "websocket.send", "text": event.decode()})


def _as_http(scope: Scope) -> Scope:
    """The scope of the HTTP request that each turn makes."""
    headers = [(name, value) for name, value in scope["headers"] if name in KEPT_HEADERS]
    here = {"type": "http", "method": "POST", "path": RESPONSES.path, "extensions": {}}
    return scope | here | {"headers": headers}


def _as_event(status: int, error: bytes) -> bytes:
    """An error's body as an event."""
    return b'{"type":"error","status":' + str(status).encode() + b"," + error[1:]
