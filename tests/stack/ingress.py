"""An ingress in front of both planes: one origin, routed by path, as docs/operate.md describes.

A small proxy in a process of its own, for streamed HTTP in both directions and for websockets.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
import websockets

from gateway.planes.forward import PATHS
from tests.stack.asking import until
from tests.stack.running import ROOT

TO_CONSOLES = re.compile(rf"({'|'.join(PATHS)})(/|$)")
TO_GATEWAYS = re.compile(r"/v1/|/ws/|/engine/|/(detokenize|rerank|score|tokenize|v2)(/|$)")
OF_ONE_HOP = {b"transfer-encoding", b"connection"}


class Ingress:
    """The proxy's ASGI application."""

    def __init__(self, gateway: str, console: str) -> None:
        self._gateway, self._console = gateway, console
        self._client = httpx.AsyncClient(timeout=120, trust_env=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        to = self._gateway if reaches_gateway(scope["path"]) else self._console
        if scope["type"] == "websocket":
            await self._socket(to, scope, receive, send)
        elif scope["type"] == "http":
            await self._http(to, scope, receive, send)

    async def _http(self, to: str, scope: Any, receive: Any, send: Any) -> None:
        url = to + scope["raw_path"].decode() + "?" + scope["query_string"].decode()
        headers = [(k, v) for k, v in scope["headers"] if k not in OF_ONE_HOP]
        bodiless = scope["method"] in ("GET", "HEAD")
        request = self._client.build_request(
            scope["method"], url, headers=headers, content=None if bodiless else _body(receive)
        )
        answer = await self._client.send(request, stream=True)
        told = [(k, v) for k, v in answer.headers.raw if k.lower() not in OF_ONE_HOP]
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


def reaches_gateway(path: str) -> bool:
    """Whether requests of this path go to the gateway, not to the console."""
    return TO_CONSOLES.match(path) is None and TO_GATEWAYS.match(path) is not None


async def _body(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        yield message.get("body", b"")
        more = message.get("more_body", False)


@contextmanager
def ingress(port: int, gateway: str, console: str) -> Iterator[None]:
    """Run the proxy on a port of this machine until the context ends."""
    command = [sys.executable, "-m", "tests.stack.ingress", str(port), gateway, console]
    path = os.pathsep.join((str(ROOT), str(ROOT / "platform")))
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path})
    try:
        until(lambda: _listens(port))
        yield
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    app: Any = Ingress(*sys.argv[2:])
    uvicorn.run(
        app, port=int(sys.argv[1]), log_level="warning", lifespan="off", ws="websockets-sansio"
    )
