"""Files over HTTP from a gateway that is killed as it is dialed."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

import pytest
import uvloop

from inference.agent.adapters.store import FetchFailed, HttpFetch

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a connection that is closed is reset."""


async def fetch_from(listener: socket.socket) -> None:
    """Each connection is reset when the loop turns next, as those of a killed process are."""
    loop, fetch = asyncio.get_running_loop(), HttpFetch("the-token")

    def reset() -> None:
        with suppress(BlockingIOError):
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()
        loop.call_soon(reset)

    reset()
    with pytest.raises(FetchFailed):
        async with fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/", ""):
            pass
    await fetch.aclose()


def test_a_connection_that_is_reset_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        uvloop.run(fetch_from(listener))
