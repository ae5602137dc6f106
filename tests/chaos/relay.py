"""What lies between agents and a gateway: a relay that cuts connections, as networks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 1 << 16


class Relay:
    """Passes on what comes to a port of its own, both ways."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        """Both ends of all connections."""

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[None]:
        """On this address, inside."""
        server = await asyncio.start_server(self._serve, host, port)
        try:
            yield
        finally:
            server.close()
            self.cut()

    def cut(self) -> bool:
        """Break all connections, without a word to either end; whether there was any."""
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
