"""The HTTP connections to an OpenAI-compatible server."""

from __future__ import annotations

import httpx

CONNECT_S = 5.0
SILENCE_S = 600.0
"""How long the server may say nothing before its answer counts as lost: it may queue requests."""
MAX_ERROR = 64 << 10
"""Bytes of an error's body that are read."""


def client_of(url: str, key: str) -> httpx.AsyncClient:
    """A client of the server at `url` (with its `/v1`)."""
    return httpx.AsyncClient(
        base_url=f"{url.rstrip('/')}/",
        headers={"Accept-Encoding": "identity"}
        | ({"Authorization": f"Bearer {key}"} if key else {}),
        timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
    )


async def beginning(answer: httpx.Response, most: int = MAX_ERROR) -> bytes:
    """At most the first `most` bytes of a body."""
    body = b""
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > most:
            break
    return body[:most]
