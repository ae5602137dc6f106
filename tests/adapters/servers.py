"""A real HTTP server in this process's loop, for any ASGI application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import uvicorn

from tests.servers import PromptServer


@asynccontextmanager
async def serving(
    application: Callable[..., Awaitable[None]], *, lifespan: Literal["on", "off"] = "off"
) -> AsyncIterator[str]:
    """The base URL of a server that runs inside the context."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        application,
        log_config=None,
        lifespan=lifespan,
        ws="none",
        timeout_keep_alive=600,
        timeout_graceful_shutdown=1,
    )
    server = PromptServer(config)
    # No need to wait: connections queue in the listening socket until the server is up.
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


Answer = tuple[int, bytes]


class Responder:
    """An ASGI application that answers each request from a function and records the requests."""

    def __init__(self, answer: Callable[[dict[str, Any], bytes], Answer]) -> None:
        self._answer = answer
        self.requests: list[tuple[str, dict[bytes, bytes], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.requests.append((scope["path"], dict(scope["headers"]), body))
        status, content = self._answer(scope, body)
        length = (b"content-length", str(len(content)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [length]})
        await send({"type": "http.response.body", "body": content})
