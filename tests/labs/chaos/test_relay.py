"""The relay forwards connections and cuts them."""

from __future__ import annotations

import asyncio
import socket

from tests.labs.chaos.relay import Relay

HOST = "127.0.0.1"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_what_comes_is_passed_on_until_it_is_cut() -> None:
    server = await asyncio.start_server(echo, HOST, 0)
    relay, port = Relay((HOST, server.sockets[0].getsockname()[1])), free_port()
    async with relay.listening(HOST, port), asyncio.timeout(60):
        assert not relay.cut(), "nobody is there"
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"there and back")
        assert await reader.readexactly(14) == b"there and back"
        assert relay.cut()
        assert await rest_of(reader) == b""
        writer.close()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"again")
        writer.write_eof()
        assert await reader.read() == b"again"
        writer.close()
        server.close()
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await rest_of(reader) == b"", "its gateway is away"
        writer.close()
