"""The HTTP connections to an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import httpx

from inference.agent.engines.engine import EngineNotStarted

CONNECT_S = 5.0
IDLE_S = 2.0
"""How long a connection is kept for the next request. llama.cpp, uvicorn (vLLM, SGLang) and Node
close one after 5 s, httpx's own default: a request that is sent at that moment is lost."""
SILENCE_S = 600.0
"""How long the server may say nothing before its answer counts as lost: it may queue requests."""
MAX_ERROR = 64 << 10
"""Bytes of an error's body that are read."""
MAX_KEY = 16 << 10
"""Bytes of a key; Google's and Azure's tokens have one to four thousand."""


class KeyFile(httpx.Auth):
    """Sends the key that a file holds, for services whose keys last for an hour: another program
    writes each new one there."""

    def __init__(self, path: Path) -> None:
        """Reads the key.

        Raises:
            EngineNotStarted: it can't be read, or is no key.
        """
        self._path, self._read_ns = path, 0
        self._key = ""
        try:
            self._renew()
        except OSError as error:
            raise EngineNotStarted(
                f"LORIKEET_UPSTREAM_KEY_FILE {path} can't be read: {error.strerror}"
            ) from error
        if not self._key:
            raise EngineNotStarted(f"LORIKEET_UPSTREAM_KEY_FILE {path} holds no key")

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Called by httpx for each request."""
        with suppress(OSError):  # while it is replaced the last one counts
            self._renew()
        request.headers["Authorization"] = f"Bearer {self._key}"
        yield request

    def _renew(self) -> None:
        changed_ns = self._path.stat().st_mtime_ns
        if changed_ns != self._read_ns:
            with self._path.open("rb") as file:
                found = file.read(MAX_KEY + 1).strip()
            if found.isascii() and 0 < len(found) <= MAX_KEY and b"\n" not in found:
                self._key = found.decode()
            self._read_ns = changed_ns


def client_of(url: str, key: str | KeyFile) -> httpx.AsyncClient:
    """A client of the server at `url` (with its `/v1`)."""
    bearer = {"Authorization": f"Bearer {key}"} if key and isinstance(key, str) else {}
    return httpx.AsyncClient(
        base_url=f"{url.rstrip('/')}/",
        headers={"Accept-Encoding": "identity"} | bearer,
        auth=key if isinstance(key, KeyFile) else None,
        timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=IDLE_S),
        trust_env=False,
    )


def root_of(client: httpx.AsyncClient) -> str:
    """The server's address without `/v1`."""
    return str(client.base_url).rstrip("/").removesuffix("/v1")


async def beginning(answer: httpx.Response, most: int = MAX_ERROR) -> bytes:
    """At most the first `most` bytes of a body."""
    body = b""
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > most:
            break
    return body[:most]
