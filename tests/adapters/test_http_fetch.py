"""Files over HTTP from a gateway that is killed while an agent connects to it."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

import pytest
import uvloop

from inference.agent.adapters.store import FetchFailed, HttpFetch

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on with 0 seconds: closing the connection resets it."""


async def fetch_from(listener: socket.socket) -> None:
    """Fetch while each connection is reset in the loop's next iteration, as if the process was
    killed."""
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
