"""uvicorn, as both planes run it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import uvicorn

from inference import gc_tuning


class NotStarted(Exception):
    """The server could not start; the log says why."""


class Server(uvicorn.Server):
    """On the first signal it finishes what it was asked for (`drain`) before it closes its
    connections; on the second it ends at once."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        gc_tuning.settle()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            self.force_exit = self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self._draining = self._loop.create_task(self._drained())

    async def _drained(self) -> None:
        await self._drain()
        self.should_exit = True


async def nothing() -> None:
    """To drain, where connections are closed gracefully and that is all."""


def serve(
    application: Any,
    host: str,
    port: int,
    *,
    graceful_s: int,
    drain: Callable[[], Awaitable[None]] = nothing,
    **options: Any,
) -> None:
    """Serve until a signal ends it; `options` are uvicorn's.

    Raises:
        NotStarted: it did not start.
    """
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=graceful_s,
        **options,
    )
    server = Server(config, drain)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve())
    if not server.started:
        raise NotStarted
