"""The edges that engine agents and workers dial: the engine link, an engine's failure to start, and
the adapter probe.

Plain ASGI applications in Channels' URL router: a stock Channels consumer would cost a thread hop
per frame (it closes old database connections around every message), and no frame here touches the
database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inference.errors import InferenceError
from inference.gateway.exchanges.exchange import Exchange, Receive, Scope, Send, parse_json
from inference.gateway.hub import Hub
from inference.interfaces.credentials import KnownCredentials
from inference.link.engine_info import AdapterRef
from inference.link.wire import MAX_FRAME_BYTES

UNAUTHORISED = 4401
"""Websocket close code for an unknown credential."""
MAX_REASON = 60
"""Characters; a close frame holds little more."""
MAX_PROBE_BYTES = 64 << 10
MAX_FAILURE_BYTES = 16 << 10
TRUST = "lorikeet.trust"
"""Extension of the ASGI scope with which an application lifts the server's bounds on messages of
unauthenticated clients."""


def trust(scope: Scope, max_message_bytes: int, *, paced: bool) -> None:
    """Tell the server that this socket's client is authenticated: from now on its messages may have
    up to `max_message_bytes`, and unless it is `paced` their rate is not limited."""
    if extension := scope.get("extensions", {}).get(TRUST):
        extension["trust"](max_message_bytes, paced=paced)


class AsgiTransport:
    """An accepted ASGI websocket as a link's Transport."""

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
        """Close with the reason, truncated to MAX_REASON."""
        await self._guarded(
            {"type": "websocket.close", "code": 1008, "reason": reason[:MAX_REASON]}
        )

    async def _guarded(self, event: dict[str, object]) -> None:
        try:
            await self._send(event)
        except RuntimeError as error:  # ASGI servers raise this once the connection is closed
            raise ConnectionResetError(str(error)) from error


class EngineSocket:
    """`/ws/engine`: an agent with an engine's credential joins the hub."""

    def __init__(self, hub: Hub, engines: KnownCredentials) -> None:
        self._hub, self._engines = hub, engines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        try:
            credential = self._engines.identify(bearer(scope))
        except InferenceError as error:
            reason = error.message[:MAX_REASON]
            await send({"type": "websocket.close", "code": UNAUTHORISED, "reason": reason})
            return
        trust(scope, MAX_FRAME_BYTES, paced=False)
        await send({"type": "websocket.accept"})
        await self._hub.serve(AsgiTransport(receive, send), credential)


class _StartFailed(msgspec.Struct):
    engine: str
    cause: str


class EngineStartFailed:
    """`POST /engine/failed`: an engine that could not start says why."""

    def __init__(self, hub: Hub, engines: KnownCredentials) -> None:
        self._hub, self._engines = hub, engines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            credential = self._engines.identify(exchange.api_key())
            exchange.require_method("POST")
            failure = parse_json(_StartFailed, await exchange.body(MAX_FAILURE_BYTES))
            self._hub.start_failures.note(failure.engine, credential, failure.cause)
            await exchange.reply(200, b"{}")
        except InferenceError as error:
            await exchange.fail(error)


class _ProbeRequest(msgspec.Struct):
    base_model: str
    name: str
    digest: str
    rank: int = 0
    modules: tuple[str, ...] = ()
    revision: str = ""
    """Revision of the engine that should try it; empty: any."""
    rows: list[list[int]] = []
    """Tokens whose log-probabilities are wanted."""


class EngineProbe:
    """`POST /engine/probe`: load an adapter on an engine and report how it changes the output. For
    workers, which authenticate with their token."""

    def __init__(self, hub: Hub, token: str) -> None:
        self._hub, self._token = hub, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            await exchange.reply(200, msgspec.json.encode(await self._probe(exchange)))
        except InferenceError as error:
            await exchange.fail(error)

    async def _probe(self, exchange: Exchange) -> dict[str, object]:
        exchange.require_token(self._token, "LORIKEET_WORKER_TOKEN")
        exchange.require_method("POST")
        wanted = parse_json(_ProbeRequest, await exchange.body(MAX_PROBE_BYTES))
        adapter = AdapterRef(wanted.name, wanted.digest, wanted.rank, wanted.modules)
        return await self._hub.probe(wanted.base_model, adapter, wanted.revision, wanted.rows)


def bearer(scope: Mapping[str, Any]) -> str:
    """The bearer token of the `Authorization` header; empty if there is none."""
    value: bytes = dict(scope["headers"]).get(b"authorization", b"")
    return value.decode("latin-1").removeprefix("Bearer ").strip()


class NoSocket:
    """Any other websocket address: refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 4404, "reason": "invalid URL"})
