"""Raw bytes on sockets, as no well-behaved client sends them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.labs.bench.machinery.client import Address

TIMEOUT_S = 30.0
"""Seconds to wait for an answer; without one, `silence` is counted and the attacker continues."""
PAUSE_S = 0.01
"""Seconds between two tries of an attacker, so that requests which the server refuses cheaply are
not sent by the thousand."""


@dataclass
class Target:
    """What is attacked, the attacker's own key, and what strangers know."""

    gateway: Address
    console: Address
    key: str
    model: str
    adapter: str
    answers: Counter[str] = field(default_factory=Counter)
    """By status; `closed` if the connection ended without one, `silence` if nothing came."""

    def headers(self) -> dict[str, str]:
        """For a JSON request with the attacker's key; the connection ends with the answer."""
        return {
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Connection": "close",
        }


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """A complete HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


@asynccontextmanager
async def connected(
    address: Address, limit: int = 1 << 16
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is aborted at the end of the block."""
    reader, writer = await asyncio.open_connection(*address, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def send(target: Target, address: Address, data: bytes, *, whole: bool = False) -> None:
    """Send bytes on a new connection and count how they are answered.

    `whole`: read the answer to its end, as a client does that wants all of the work to be done.
    """
    try:
        async with connected(address) as (reader, writer), asyncio.timeout(TIMEOUT_S):
            writing = asyncio.create_task(_write(writer, data))
            try:
                line = await reader.readline()
                target.answers[line[9:12].decode("latin-1") or "closed"] += 1
                while whole and await reader.read(1 << 16):
                    pass
            finally:
                writing.cancel()
    except TimeoutError:
        target.answers["silence"] += 1
    except OSError:
        target.answers["closed"] += 1


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(OSError):  # the answer and the connection's end may precede the last byte
        writer.write(data)
        await writer.drain()


async def at_once(count: int, attacker: Callable[[], Awaitable[None]]) -> None:
    """Run `count` attackers, each of them again as soon as it is done; until cancelled."""

    async def go_on() -> None:
        while True:
            await attacker()
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(go_on())
