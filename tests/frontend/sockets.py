"""The console's websockets as a browser's tab has them, without a server between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.test import Client

PATIENCE_S = 60.0


class Tab:
    """What a tab has of an open socket."""

    def __init__(self, socket: ApplicationCommunicator) -> None:
        self._socket = socket

    async def say(self, **message: Any) -> None:
        await self._socket.send_input({"type": "websocket.receive", "text": json.dumps(message)})

    async def event(self) -> Any:
        return await self._socket.receive_output(timeout=PATIENCE_S)

    async def hear(self) -> dict[str, Any]:
        event = await self.event()
        assert event["type"] == "websocket.send", event
        message: dict[str, Any] = json.loads(event["text"])
        return message

    async def closed(self) -> int:
        """The code that the next event closes it with."""
        event = await self.event()
        assert event["type"] == "websocket.close", event
        return int(event["code"])

    async def ended(self) -> int:
        """The code that it is closed with; what is said before is left out."""
        while (event := await self.event())["type"] == "websocket.send":
            pass
        return int(event["code"])


@asynccontextmanager
async def connected(app: Any, path: str, client: Client) -> AsyncIterator[ApplicationCommunicator]:
    """A socket that was accepted; in the end the tab goes away."""
    socket = _dial(app, path, client, "http://localhost")
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output(timeout=PATIENCE_S))["type"] == "websocket.accept"
    try:
        yield socket
    finally:
        await socket.send_input({"type": "websocket.disconnect", "code": 1001})
        await socket.wait(timeout=PATIENCE_S)


async def turned_away(app: Any, path: str, client: Client, *, origin: str) -> bool:
    """Whether a page of this origin is refused its socket."""
    socket = _dial(app, path, client, origin)
    await socket.send_input({"type": "websocket.connect"})
    answer = await socket.receive_output(timeout=PATIENCE_S)
    return bool(answer["type"] == "websocket.close")


def _dial(app: Any, path: str, client: Client, origin: str) -> ApplicationCommunicator:
    headers = [(b"host", b"localhost"), (b"origin", origin.encode())]
    if cookie := client.cookies.get(settings.SESSION_COOKIE_NAME):
        headers.append((b"cookie", f"{cookie.key}={cookie.value}".encode()))
    scope = {
        "type": "websocket",
        "path": f"/{path}",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    return ApplicationCommunicator(app, scope)
