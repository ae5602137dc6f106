"""Runs uvicorn, for both planes."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import structlog
import uvicorn
from django.conf import settings

from gateway.edge.addresses import TrueAddress
from gateway.edge.bounds import EdgeBounds
from gateway.edge.census import Census
from gateway.edge.http import HttpConnection
from gateway.edge.proxies import Proxies
from inference.process import announce, gc_tuning

log = structlog.get_logger(__name__)

FILES = 256
"""Open files of a process apart from its clients' connections: databases, Redis, logs, adapters."""
ACCEPT_S = 1.0
"""How long connections that the kernel holds are accepted, at the end."""
ARRIVAL_S = 0.2
"""How long requests that were sent before the listener closed may take to arrive, at the end."""


class NotStarted(Exception):
    """The server could not start; the log says why."""


class Server(uvicorn.Server):
    """On the first signal it calls `drain`, which finishes requests, before it closes its
    connections; on the second it ends at once.

    From the first signal on, each answer is the last one on its connection: a connection that a
    client keeps would otherwise be closed while its next request is on the way, and reset.
    """

    def __init__(
        self, config: uvicorn.Config, census: Census, drain: Callable[[], Awaitable[object]]
    ) -> None:
        super().__init__(config)
        self._census, self._drain = census, drain
        self._draining: asyncio.Task[None] | None = None
        self._alive: asyncio.Task[None] | None = None
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        gc_tuning.settle()
        if self.started:
            announce.ready()
            self._alive = self._loop.create_task(announce.keep_alive())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            self.force_exit = self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        announce.stopping()
        self._census.closing = True
        for connection in self.server_state.connections:
            if isinstance(connection, HttpConnection):
                connection.answer_is_last()
        self._draining = self._loop.create_task(self._drained())

    async def _drained(self) -> None:
        await self._drain()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener, then the connections, once what was sent to them has arrived."""
        if not self.force_exit:
            await self._stop_listening()
            await asyncio.sleep(ARRIVAL_S)
        await super().shutdown(sockets)

    async def _stop_listening(self) -> None:
        """Close the listener once the loop has accepted what the kernel holds, which closing would
        reset: it accepts one connection per iteration. The kernel is asked to hold no more."""
        held, end = select.poll(), self._loop.time() + ACCEPT_S
        for server in self.servers:
            for listening in server.sockets:
                with socket.socket(fileno=os.dup(listening.fileno())) as listener:
                    listener.listen(0)
                held.register(listening.fileno(), select.POLLIN)
        while held.poll(0) and self._loop.time() < end:  # noqa: ASYNC110 - the loop has no event
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()


async def nothing() -> None:
    """The default `drain`: connections are closed gracefully, nothing else."""


def serve(
    application: Any,
    host: str,
    port: int,
    *,
    graceful_s: int,
    drain: Callable[[], Awaitable[object]] = nothing,
    **options: Any,
) -> None:
    """Serve until a signal ends it; `options` are uvicorn's.

    Raises:
        BadSetting: LORIKEET_TRUSTED_PROXIES is invalid.
        NotStarted: it did not start.
    """
    proxies, bounds = Proxies(settings.TRUSTED_PROXIES), within_open_files(EdgeBounds.configured())
    census = Census(bounds.connections, bounds.connections_per_address)
    config = configured(
        application,
        bounds,
        proxies,
        census,
        host=host,
        port=port,
        loop="uvloop",
        lifespan="on",
        timeout_graceful_shutdown=graceful_s,
        **options,
    )
    server = Server(config, census, drain)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve())
    if not server.started:
        raise NotStarted


def configured(
    application: Any, bounds: EdgeBounds, proxies: Proxies, census: Census, **options: Any
) -> uvicorn.Config:
    """uvicorn's configuration for an application behind the edge."""
    http: Any = partial(HttpConnection, bounds, census, proxies)
    return uvicorn.Config(
        TrueAddress(application, proxies, census),
        http=http,
        proxy_headers=False,
        backlog=bounds.connections,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        **options,
    )


def within_open_files(bounds: EdgeBounds) -> EdgeBounds:
    """Raise the limit of open files to what the connections need, or else reduce the number of
    connections."""
    wanted = bounds.connections + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            most = max(1, soft - FILES)
            log.warning("connections_bounded_by_open_files", connections=most, files=soft)
            return replace(bounds, connections=most)
    return bounds
