"""The pages' websockets from a browser's side, connected to the ASGI application directly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.test import Client

from frontend.sockets.gate import Gate, Origins
from frontend.sockets.redeeming import PostgresRedeemer
from frontend.sockets.tickets import TicketSigner
from tenants.database import Database
from tenants.directory.auth import PostgresDirectory

TIMEOUT_S = 60.0
ORIGIN, LOOPBACK = "http://localhost:8001", "127.0.0.1"


class Tab:
    """A tab's end of an open socket."""

    def __init__(self, socket: ApplicationCommunicator) -> None:
        self._socket = socket

    async def say(self, **message: Any) -> None:
        await self._socket.send_input({"type": "websocket.receive", "text": json.dumps(message)})

    async def event(self) -> Any:
        return await self._socket.receive_output(timeout=TIMEOUT_S)

    async def hear(self) -> dict[str, Any]:
        event = await self.event()
        assert event["type"] == "websocket.send", event
        message: dict[str, Any] = json.loads(event["text"])
        return message

    async def closed(self) -> int:
        """The code with which the next event closes the socket."""
        event = await self.event()
        assert event["type"] == "websocket.close", event
        return int(event["code"])

    async def ended(self) -> int:
        """The code with which the socket is closed; messages before that are skipped."""
        while (event := await self.event())["type"] == "websocket.send":
            pass
        return int(event["code"])


def ticket_of(client: Client, purpose: str, tenant: str = "") -> str:
    """The ticket that the console gives to the signed-in client."""
    answer = asked(client, purpose, tenant)
    assert answer.status_code == 200, answer.content
    return str(answer.json()["ticket"])


def asked(client: Client, purpose: str, tenant: str = "") -> Any:
    """The console's response to a page that asks for a ticket."""
    wish = {"purpose": purpose, "tenant": tenant}
    return client.post("/tickets", wish, content_type="application/json")


@asynccontextmanager
async def doorway(**options: Any) -> AsyncIterator[tuple[Gate, PostgresDirectory]]:
    """A gateway's gate, and its directory, which tells the gate whose rights have changed."""
    database, directory = Database("tickets"), PostgresDirectory()
    origins, listening = Origins(settings.CONSOLE_URL, ["localhost"], []), asyncio.Event()
    gate = Gate(
        TicketSigner(settings.INTERNAL_TOKEN), PostgresRedeemer(database), origins, **options
    )
    directory.on_people(gate.changed)
    directory.on_people(lambda notice: listening.set())
    await database.open()
    async with directory:
        async with asyncio.timeout(TIMEOUT_S):
            await listening.wait()
        yield gate, directory
    await database.close()


@asynccontextmanager
async def connected(
    app: Any, path: str, ticket: str | None = None, *, client: str = LOOPBACK
) -> AsyncIterator[ApplicationCommunicator]:
    """An accepted socket that has sent the ticket, if there is one. It disconnects at the end."""
    socket = _dial(app, path, ORIGIN, client)
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output(timeout=TIMEOUT_S))["type"] == "websocket.accept"
    if ticket is not None:
        await Tab(socket).say(type="ticket", ticket=ticket)
    try:
        yield socket
    finally:
        await socket.send_input({"type": "websocket.disconnect", "code": 1001})
        await socket.wait(timeout=TIMEOUT_S)


async def turned_away(app: Any, path: str, *, origin: str = ORIGIN, client: str = LOOPBACK) -> bool:
    """Whether a page of this origin, from this client address, is refused its socket."""
    socket = _dial(app, path, origin, client)
    await socket.send_input({"type": "websocket.connect"})
    answer = await socket.receive_output(timeout=TIMEOUT_S)
    return bool(answer["type"] == "websocket.close")


def _dial(app: Any, path: str, origin: str, client: str) -> ApplicationCommunicator:
    scope = {
        "type": "websocket",
        "path": f"/{path}",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"origin", origin.encode())],
        "client": (client, 1),
    }
    return ApplicationCommunicator(app, scope)
