"""The edges that engine agents and workers dial: the engine link and the adapter probe.

Plain ASGI applications in Channels' URL router: a stock Channels consumer would cost a thread hop
per frame (it closes old database connections around every message), and no frame here touches the
database.
"""

from __future__ import annotations

import msgspec

from inference.errors import InferenceError, InvalidApiKey, MethodNotAllowed
from inference.gateway.exchange import Exchange, Receive, Scope, Send, parse_json
from inference.gateway.hub import Hub
from inference.link.wire import MAX_FRAME_BYTES, AdapterRef

UNAUTHORISED = 4401
"""Websocket close code for a wrong engine token."""
MAX_PROBE_BYTES = 64 << 10
TRUST = "lorikeet.trust"
"""Extension of the ASGI scope: whoever listens bounds the messages of clients whom nobody knows."""


def trust(scope: Scope, max_message_bytes: int, *, paced: bool) -> None:
    """This socket's client is known: from now on its messages may be so large; one who is not
    `paced` may send as many as he likes."""
    if extension := scope.get("extensions", {}).get(TRUST):
        extension["trust"](max_message_bytes, paced=paced)


class AsgiTransport:
    """An accepted ASGI websocket as the hub's Transport."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send

    async def receive(self) -> bytes | None:
        """The next binary message; None when the connection is closed."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            return None
        return message.get("bytes") or (message.get("text") or "").encode()

    async def send(self, message: bytes) -> None:
        """Write one binary message; waits while the socket's buffer is full."""
        await self._guarded({"type": "websocket.send", "bytes": message})

    async def close(self, reason: str) -> None:
        """Close with the reason, cut to what a close frame holds."""
        await self._guarded({"type": "websocket.close", "code": 1008, "reason": reason[:60]})

    async def _guarded(self, event: dict[str, object]) -> None:
        try:
            await self._send(event)
        except RuntimeError as error:  # how ASGI servers say that the connection is closed
            raise ConnectionResetError(str(error)) from error


class EngineSocket:
    """`/ws/engine`: an agent with the engines' token joins the hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        if not self._hub.token_matches(_token(scope)):
            await send({"type": "websocket.close", "code": UNAUTHORISED, "reason": "bad token"})
            return
        trust(scope, MAX_FRAME_BYTES, paced=False)
        await send({"type": "websocket.accept"})
        await self._hub.serve(AsgiTransport(receive, send))


class _ProbeRequest(msgspec.Struct):
    base_model: str
    name: str
    digest: str
    rank: int = 0
    modules: tuple[str, ...] = ()


class EngineProbe:
    """`POST /engine/probe`: load an adapter on some engine and say what it did to the output."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            await exchange.reply(200, msgspec.json.encode(await self._probe(exchange, scope)))
        except InferenceError as error:
            await exchange.fail(error)

    async def _probe(self, exchange: Exchange, scope: Scope) -> dict[str, object]:
        if not self._hub.token_matches(_token(scope)):
            raise InvalidApiKey("This address takes the engines' token.")
        if exchange.method != "POST":
            raise MethodNotAllowed(f"{exchange.path} takes POST only.")
        wanted = parse_json(_ProbeRequest, await exchange.body(MAX_PROBE_BYTES))
        adapter = AdapterRef(wanted.name, wanted.digest, wanted.rank, wanted.modules)
        return await self._hub.probe(wanted.base_model, adapter)


def _token(scope: Scope) -> str:
    value: bytes = dict(scope["headers"]).get(b"authorization", b"")
    return value.decode("latin-1").removeprefix("Bearer ").strip()


class NoSocket:
    """Any other websocket address: refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 4404, "reason": "no such address"})
