"""Determines a request's client before any other code sees it."""

from __future__ import annotations

from typing import Any

from gateway.edge.census import Census
from gateway.edge.proxies import Proxies, plain
from inference.errors import RateLimitExceeded
from inference.gateway.exchanges.exchange import Exchange, Receive, Scope, Send, refuse_socket


class TrueAddress:
    """Sets the client's address and scheme in the scope; requests from proxies are counted by the
    client's address."""

    def __init__(self, app: Any, proxies: Proxies, census: Census) -> None:
        self._app, self._proxies, self._census = app, proxies, census

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")  # absent for the lifespan and for Unix sockets
        if client is None:
            await self._app(scope, receive, send)
        elif self._proxies.trust(client[0]):
            await self._proxied(client[0], scope, receive, send)
        else:
            scope["client"] = (plain(client[0]), client[1])
            await self._app(scope, receive, send)

    async def _proxied(self, peer: str, scope: Scope, receive: Receive, send: Send) -> None:
        address = self._proxies.client(peer, scope["headers"])
        scope["client"] = (address, 0)
        if (https := self._proxies.is_https(scope["headers"])) is not None:
            base = "ws" if scope["type"] == "websocket" else "http"
            scope["scheme"] = base + "s" * https
        try:
            with self._census.request(address):
                await self._app(scope, receive, send)
        except RateLimitExceeded as error:
            await _refuse(error, scope, receive, send)


async def _refuse(error: RateLimitExceeded, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        await refuse_socket(scope, receive, send, error)
    else:
        await Exchange(scope, receive, send).fail(error)
