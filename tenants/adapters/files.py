"""`GET /engine/adapters/<digest>/<file>`: hands adapter files to engine agents.

Plain ASGI: the file is read in chunks in a thread and sent as the socket takes them, so a slow
agent delays nobody else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any

from inference.content import FILES, TICKET_HEADER
from inference.errors import InferenceError, Unavailable
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.sockets import bearer
from inference.interfaces.credentials import EngineIdentity, KnownCredentials
from tenants.adapters import storage
from tenants.database import Database

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

ALLOW: Header = (b"allow", b"GET, HEAD")
CHUNK_BYTES = 1 << 20
_PATH = re.compile(r"/engine/adapters/([0-9a-f]{64})/(" + "|".join(map(re.escape, FILES)) + ")")


# Engines may fetch versions that are being probed, and those that passed.
FOLDER = """
SELECT folder FROM tenants_adapterversion
WHERE digest = %s AND state IN ('probing', 'ready') AND folder <> '' LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class _Row:
    folder: str


class AdapterFiles:
    """Serves the files of versions in `probing` or `ready` to engines that were sent requests for
    them or told to load them."""

    def __init__(
        self, engines: KnownCredentials, dispatches: Dispatches, database: Database
    ) -> None:
        self._engines, self._dispatches = engines, dispatches
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.fullmatch(scope["path"])
        try:
            credential = self._engines.identify(bearer(scope))
        except InferenceError as error:
            await _answer(send, error.http_status, b"This address takes an engine's credential.\n")
            return
        if found is None:
            await _answer(send, 404, b"There is no such file.\n")
        elif not self._may_fetch(scope, found[1], credential):
            await _answer(send, 403, b"This adapter was not dispatched to this engine.\n")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"This address takes GET only.\n", ALLOW)
        else:
            await self._serve(found[1], found[2], send, body=scope["method"] == "GET")

    def _may_fetch(self, scope: Scope, digest: str, credential: EngineIdentity) -> bool:
        ticket = dict(scope["headers"]).get(TICKET_HEADER.encode(), b"").decode("latin-1")
        return self._dispatches.may_fetch(digest, credential.id, ticket)

    async def _serve(self, digest: str, name: str, send: Send, *, body: bool) -> None:
        try:
            folder = await self._folder(digest)
            size = await asyncio.to_thread(storage.size, folder, name)
            file = await asyncio.to_thread(storage.open_file, folder, name)
        except Unavailable:
            await _answer(send, 503, b"The database does not answer.\n")
            return
        except FileNotFoundError:
            await _answer(send, 404, b"There is no such adapter.\n")
            return
        with closing(file):
            await send(_start(200, size))
            await _stream(file if body else None, send)

    async def _folder(self, digest: str) -> str:
        """The folder of a version with this content. Raises FileNotFoundError if there is none."""
        rows = await self._database.rows(_Row, FOLDER, [digest])
        if not rows:
            raise FileNotFoundError
        return rows[0].folder


async def _stream(file: IO[bytes] | None, send: Send) -> None:
    while file and (chunk := await asyncio.to_thread(file.read, CHUNK_BYTES)):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, text: bytes, *headers: Header) -> None:
    await send(_start(status, len(text), *headers))
    await send({"type": "http.response.body", "body": text})


def _start(status: int, size: int, *headers: Header) -> dict[str, Any]:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(size).encode()),
            *headers,
        ],
    }
