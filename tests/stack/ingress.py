"""What may stand before both planes: one origin, told apart by path, as docs/operate.md has it.

A small proxy in a thread: HTTP in both directions as it comes, and websockets.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
import websockets

TO_GATEWAYS = re.compile(r"/v1/(?!organization/|usage/)|/ws/|/engine/")
PASSED_ON = {b"transfer-encoding", b"connection", b"content-length", b"host"}


class Ingress:
    """The ASGI application."""

    def __init__(self, gateway: str, console: str) -> None:
        self._gateway, self._console = gateway, console
        self._client = httpx.AsyncClient(timeout=120, trust_env=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        to = self._gateway if TO_GATEWAYS.match(scope["path"]) else self._console
        if scope["type"] == "websocket":
            await self._socket(to, scope, receive, send)
        elif scope["type"] == "http":
            await self._http(to, scope, receive, send)

    async def _http(self, to: str, scope: Any, receive: Any, send: Any) -> None:
        url = to + scope["raw_path"].decode() + "?" + scope["query_string"].decode()
        headers = [(k, v) for k, v in scope["headers"] if k not in PASSED_ON - {b"host"}]
        bodiless = scope["method"] in ("GET", "HEAD")
        request = self._client.build_request(
            scope["method"], url, headers=headers, content=None if bodiless else _body(receive)
        )
        answer = await self._client.send(request, stream=True)
        told = [(k, v) for k, v in answer.headers.raw if k.lower() not in PASSED_ON]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": told})
        async for chunk in answer.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        await answer.aclose()

    async def _socket(self, to: str, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        origin = dict(scope["headers"]).get(b"origin", b"").decode()
        url = to.replace("http", "ws", 1) + scope["path"]
        async with websockets.connect(url, additional_headers={"Origin": origin}) as there:
            await send({"type": "websocket.accept"})

            async def down() -> None:
                try:
                    async for message in there:
                        await send({"type": "websocket.send", "text": message})
                finally:
                    await send({"type": "websocket.close", "code": there.close_code or 1000})

            passing = asyncio.create_task(down())
            while (event := await receive())["type"] == "websocket.receive":
                await there.send(event["text"])
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)


async def _body(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        yield message.get("body", b"")
        more = message.get("more_body", False)


@contextmanager
def ingress(port: int, gateway: str, console: str) -> Iterator[None]:
    """It listens on a port of this machine meanwhile."""
    app: Any = Ingress(gateway, console)
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, log_config=None, lifespan="off", ws="websockets-sansio")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
