"""A relay between agents and a gateway, which cuts connections as networks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 1 << 16


class Relay:
    """Forwards connections to its own port, in both directions."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        """Both ends of all connections."""

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[None]:
        """Listens on this address in the block."""
        server = await asyncio.start_server(self._serve, host, port)
        try:
            yield
        finally:
            server.close()
            self.cut()

    def cut(self) -> bool:
        """Abort all connections at both ends; returns whether there was any."""
        for writer in self._open:
            writer.transport.abort()
        return bool(self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, there[1]}
        self._open |= ends
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass_on(reader, there[1]))
                tasks.create_task(_pass_on(there[0], writer))
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
