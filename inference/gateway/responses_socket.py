"""`/v1/responses` as a websocket: one response after another, each may go on from the last one.

A message `{"type": "response.create", ...}` has what a body has; the events of a stream come back,
each a message. Every turn is a `POST` to the HTTP edge, made here from the message, with the
headers by which the socket's client said who it is: so limits, bill, moves and errors are those of
any request, and the key holds for each turn anew.

What `previous_response_id` may name is the response before, on the same socket: its items are kept
in memory as long as the socket is open (`conversations.py`). A turn that fails forgets it, as its
client can't know how far it came. It may also name a response that is stored
(`stored/responses.py`). Nobody else's is ever there.

One turn runs at a time, and one message may wait.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from inference.errors import InferenceError, InvalidApiKey, InvalidRequest, UnknownResponse
from inference.gateway.callers import Callers
from inference.gateway.conversations import Conversations, Said
from inference.gateway.exchange import KEY_HEADERS, Exchange, Receive, Scope, Send
from inference.gateway.http import OpenAIServer
from inference.gateway.sockets import MAX_REASON, UNAUTHORISED, trust
from inference.gateway.stored.responses import Responses
from inference.operations.bodies.reading import decode, decode_part
from inference.operations.bodies.shape import Shape
from inference.operations.error_shapes import OPENAI
from inference.operations.openai import NULL
from inference.operations.responses.items import joined, listed
from inference.operations.responses.responses import RESPONSES

NOT_ALLOWED, GOING_AWAY = 4403, 1012
"""Websocket close codes: this key may not infer; go to another gateway."""
LIFE_S = 3600.0
"""Of a socket, as with OpenAI; between two turns a client runs its tools."""
KEPT_HEADERS = {b"authorization", b"traceparent", *KEY_HEADERS}
"""Of the socket's, in each turn."""
UNSERVED = {
    "background": "the events come on the socket",
    "conversation": "go on by `previous_response_id`",
    "generate": "there is nothing to prepare",
    "stream_id": "one response comes at a time",
}
"""Fields of a message that are refused, and why."""
HARMLESS = {
    "background": (b"null", b"false"),
    "conversation": (b"null",),
    "generate": (b"null", b"true"),
    "stream_id": (b"null",),
}
ENDINGS = (b"response.completed", b"response.incomplete")
"""Events after which a client can go on."""


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
        max_body_bytes: int,
        kept_bytes: int,
        life_s: float = LIFE_S,
    ) -> None:
        """Once it is `closed`, a client is sent away after its turn. `kept_bytes` are for all that
        is kept between two turns."""
        self._server, self._callers, self._closed = server, callers, closed
        self._max_body_bytes, self._life_s = max_body_bytes, life_s
        self._conversations = Conversations(kept_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        http = _as_http(scope)
        try:
            grant = await self._callers.identify(Exchange(http, receive, send))
        except InferenceError as error:
            code = UNAUTHORISED if isinstance(error, InvalidApiKey) else NOT_ALLOWED
            reason = error.message[:MAX_REASON]
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return
        # More than a body may have, so that one above it hears so.
        trust(scope, 2 * self._max_body_bytes, paced=True)
        await send({"type": "websocket.accept"})
        kept = _Kept(self._conversations, self._server.responses, grant.tenant_id)
        try:
            await _Socket(self._server, http, receive, send, kept).run(self._closed, self._life_s)
        finally:
            kept.forget()


class _Kept:
    """What is kept for one socket."""

    def __init__(self, conversations: Conversations, responses: Responses, tenant_id: int) -> None:
        self._conversations, self._responses = conversations, responses
        self._tenant_id = tenant_id

    async def said(self, id: str) -> Said | None:
        """What was said up to the end of this response; None: there is none such."""
        said = self._conversations.find(self._tenant_id, self)
        if said is not None and said.id == id:
            return said
        return await self._responses.said(self._tenant_id, id)

    def keep(self, said: Said) -> None:
        self._conversations.keep(self._tenant_id, self, said)

    def forget(self) -> None:
        self._conversations.forget(self._tenant_id, self)


class _Socket:
    """One that is open."""

    def __init__(
        self, server: OpenAIServer, http: Scope, receive: Receive, send: Send, kept: _Kept
    ) -> None:
        self._server, self._http, self._kept = server, http, kept
        self._receive, self._send = receive, send
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()

    async def run(self, closed: asyncio.Event, life_s: float) -> None:
        """Serve it until its client goes, or is sent away."""
        tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._leave(closed, life_s)),
        ]
        try:
            while (message := await self._messages.get()) is not None:
                await self._take(message)
            if not self._gone.is_set():
                reason = "come again"
                await self._send({"type": "websocket.close", "code": GOING_AWAY, "reason": reason})
        finally:
            for task in tasks:
                task.cancel()

    async def _read(self) -> None:
        while (event := await self._receive())["type"] == "websocket.receive":
            message = event.get("bytes") or (event.get("text") or "").encode()
            if self._messages.qsize():
                said = "One response is generated at a time, and one message waits already."
                await self._fail(InvalidRequest(said))
            else:
                self._messages.put_nowait(message)
        self._gone.set()
        self._messages.put_nowait(None)

    async def _leave(self, closed: asyncio.Event, life_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(life_s):
                await closed.wait()
        self._messages.put_nowait(None)

    async def _take(self, message: bytes) -> None:
        try:
            fields = self._read_message(message)
            goes_on = await self._go_on(fields)
        except InferenceError as error:
            return await self._fail(error)
        items = listed(bytes(fields.get("input", NULL)))
        turn = _Turn(_json(fields), self._send, self._gone)
        del fields, message
        await self._server(self._http, turn.receive, turn.send)
        if turn.ended is not None:
            self._kept.keep(Said(turn.ended.id, joined(items, listed(bytes(turn.ended.output)))))
        elif goes_on:
            self._kept.forget()

    async def _fail(self, error: InferenceError) -> None:
        await _say(self._send, _as_event(error.http_status, OPENAI.body(error)))

    def _read_message(self, message: bytes) -> dict[str, msgspec.Raw]:
        """The fields of a body.

        Raises:
            InvalidRequest: it is none.
        """
        Shape(RESPONSES.max_numbers).feed(message)
        fields: dict[str, msgspec.Raw] = decode(_message, message)
        if bytes(fields.pop("type", NULL)) != b'"response.create"':
            raise InvalidRequest("`type` must be `response.create`.", param="type")
        for name, why in UNSERVED.items():
            if bytes(fields.pop(name, NULL)) not in HARMLESS[name]:
                raise InvalidRequest(f"`{name}` is not supported: {why}.", param=name)
        fields["stream"] = msgspec.Raw(b"true")
        return fields

    async def _go_on(self, fields: dict[str, msgspec.Raw]) -> bool:
        """Put what was said before in front of the input, if it goes on from a response; whether it
        does.

        Raises:
            UnknownResponse: it is not the last one of this socket, nor stored.
        """
        named = decode_part(_name, fields.pop("previous_response_id", NULL), "previous_response_id")
        if named is None:
            return False
        if (said := await self._kept.said(named)) is None:
            raise UnknownResponse(param="previous_response_id")
        items = joined(said.items, listed(bytes(fields.get("input", NULL))))
        fields["input"] = msgspec.Raw(b"[" + items + b"]")
        return True


class _Turn:
    """One request to the HTTP edge, whose events go to the socket."""

    def __init__(self, body: bytes, send: Send, gone: asyncio.Event) -> None:
        self._body: bytes | None = body
        self._to_client, self._gone = send, gone
        self._status, self._rest = 0, b""
        self.ended: _Response | None = None
        """What it came to, unless it failed."""

    async def receive(self) -> dict[str, Any]:
        """ASGI's, of a request that has arrived."""
        if (body := self._body) is not None:
            self._body = None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """ASGI's."""
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
        if data:  # else it is the end of a stream of HTTP
            if name.removeprefix(b"event: ") in ENDINGS:
                self.ended = _ended.decode(data).response
            await _say(self._to_client, data)


async def _say(send: Send, event: bytes) -> None:
    with suppress(OSError, RuntimeError):  # it is gone, which the reader hears
        await send({"type": "websocket.send", "text": event.decode()})


def _as_http(scope: Scope) -> Scope:
    """The request that each turn is."""
    headers = [(name, value) for name, value in scope["headers"] if name in KEPT_HEADERS]
    here = {"type": "http", "method": "POST", "path": RESPONSES.path, "extensions": {}}
    return scope | here | {"headers": headers}


def _as_event(status: int, error: bytes) -> bytes:
    """The body of an error, as an event."""
    return b'{"type":"error","status":' + str(status).encode() + b"," + error[1:]
