"""`GET /engine/adapters/<digest>/<file>`: hands adapter files to engine agents.

Plain ASGI: the file goes from the storage to the socket in chunks, read in a thread, and a slow
agent holds up nobody.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from django.core.files import File

from inference.content import FILES
from inference.errors import Unavailable
from tenants.adapters import storage
from tenants.database import Database

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CHUNK_BYTES = 1 << 20
_PATH = re.compile(r"/engine/adapters/([0-9a-f]{64})/(" + "|".join(map(re.escape, FILES)) + ")")


# States of versions that engines may have: tried now, or found good.
FOLDER = """
SELECT folder FROM tenants_adapterversion
WHERE digest = %s AND state IN ('probing', 'ready') AND folder <> '' LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class _Row:
    folder: str


class AdapterFiles:
    """Serves the files of versions that are being probed or ready to whoever has the token."""

    def __init__(self, token: str, database: Database) -> None:
        self._expected = f"Bearer {token}".encode()
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.fullmatch(scope["path"])
        if not self._authorised(scope):
            await _answer(send, 401, b"This address takes the engines' token.\n")
        elif found is None:
            await _answer(send, 404, b"There is no such file.\n")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"This address takes GET only.\n")
        else:
            await self._serve(found[1], found[2], send, body=scope["method"] == "GET")

    def _authorised(self, scope: Scope) -> bool:
        given: bytes = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)

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
        """Of a version with this content that engines may have. Raises FileNotFoundError."""
        rows = await self._database.rows(_Row, FOLDER, [digest])
        if not rows:
            raise FileNotFoundError
        return rows[0].folder


async def _stream(file: File[bytes] | None, send: Send) -> None:
    while file and (chunk := await asyncio.to_thread(file.read, CHUNK_BYTES)):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, text: bytes) -> None:
    await send(_start(status, len(text)))
    await send({"type": "http.response.body", "body": text})


def _start(status: int, size: int) -> dict[str, Any]:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(size).encode()),
        ],
    }
