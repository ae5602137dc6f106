"""Bytes on sockets, as well-behaved clients never send them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.bench.machinery.client import Address

PATIENCE_S = 30.0
"""For an answer; who gets none in this time counts that, and goes on."""
PAUSE_S = 0.01
"""Between two tries of one attacker: what costs the server nothing is not sent by the thousand."""


@dataclass
class Target:
    """What is attacked, and what the attacker has: a tenant's key, and what strangers know."""

    gateway: Address
    console: Address
    key: str
    model: str
    adapter: str
    answers: Counter[str] = field(default_factory=Counter)
    """By status, `closed` where the connection ended without one, and `silence`."""

    def headers(self) -> dict[str, str]:
        """Of a JSON request with the attacker's key, whose answer ends with the connection."""
        return {
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Connection": "close",
        }


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """A whole HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


@asynccontextmanager
async def connected(
    address: Address, limit: int = 1 << 16
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, which is dropped without ceremony at the end."""
    reader, writer = await asyncio.open_connection(*address, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def send(target: Target, address: Address, data: bytes, *, whole: bool = False) -> None:
    """Send bytes on a connection of their own and count how they are answered.

    `whole`: read the answer to its end, as a client does who wants all of the work done.
    """
    try:
        async with connected(address) as (reader, writer), asyncio.timeout(PATIENCE_S):
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
    with suppress(OSError):  # the answer may come, and the connection end, before all was sent
        writer.write(data)
        await writer.drain()


async def at_once(count: int, attacker: Callable[[], Awaitable[None]]) -> None:
    """So many attackers, each again as soon as it is answered; until cancelled."""

    async def go_on() -> None:
        while True:
            await attacker()
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(go_on())
