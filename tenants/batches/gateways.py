"""The worker's end of its sockets to gateways: one to each live gateway, for all batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol

import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from inference.gateway.lines import frames
from inference.gateway.lines.frames import LineMessage, LineNews, UnknownMessage
from inference.link.urls import socket_url
from inference.link.wire import MAX_FRAME_BYTES
from inference.process.supervision import supervised

log = structlog.get_logger(__name__)

REDIAL_S = 1.0
CONNECT_S = 5.0


class OutboxOwner(Protocol):
    """The sender of lines, told of its gateways: the runner."""

    def joined(self, gateway: str) -> None:
        """Lines can now be sent to the gateway."""
        ...

    def on_news(self, gateway: str, news: LineNews) -> None:
        """The gateway sent `news`."""
        ...

    def lost(self, gateway: str) -> None:
        """The socket is closed: nothing more will be heard of the lines sent to the gateway."""
        ...


class BatchGateways:
    """The sockets of one worker process. Use as an async context manager."""

    def __init__(self, owner: OutboxOwner, token: str) -> None:
        self._owner, self._token = owner, token
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._outboxes: dict[str, asyncio.Queue[LineMessage]] = {}
        """By the gateway's URL, for the sockets that are open."""

    @property
    def open(self) -> Iterable[str]:
        return self._outboxes

    def set(self, urls: Iterable[str]) -> None:
        """Set the live gateways: dial those that are new, and hang up on all others."""
        urls = set(urls)
        for url in self._dialling.keys() - urls:
            self._dialling.pop(url).cancel()
        for url in urls - self._dialling.keys():
            name = f"lines {url}"
            dialling = supervised(name, partial(self._keep, url))
            self._dialling[url] = asyncio.create_task(dialling, name=name)

    def post(self, gateway: str, message: LineMessage) -> None:
        """Queue the message if the gateway's socket is open. The batches' windows bound the
        queue."""
        if (outbox := self._outboxes.get(gateway)) is not None:
            outbox.put_nowait(message)

    async def close(self) -> None:
        """Close all sockets."""
        tasks = [*self._dialling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, url: str) -> None:
        while True:
            try:
                await self._converse(url)
            except* (OSError, WebSocketException) as errors:
                log.info("gateway_not_reached", gateway=url, reason=str(errors.exceptions[0]))
            await asyncio.sleep(REDIAL_S)

    async def _converse(self, url: str) -> None:
        async with connect(
            socket_url(url, "/ws/lines"),
            additional_headers={"Authorization": f"Bearer {self._token}"},
            max_size=2 * MAX_FRAME_BYTES,
            open_timeout=CONNECT_S,
            proxy=None,
        ) as socket:
            outbox = self._outboxes[url] = asyncio.Queue()
            self._owner.joined(url)
            try:
                async with asyncio.TaskGroup() as tasks:
                    writer = tasks.create_task(_write(outbox, socket.send))
                    async for message in socket:
                        self._hear(url, message)
                    writer.cancel()
            finally:
                del self._outboxes[url]
                self._owner.lost(url)

    def _hear(self, url: str, message: str | bytes) -> None:
        assert isinstance(message, bytes)
        news = frames.to_worker.decode(message)
        if isinstance(news, UnknownMessage):
            log.info("unknown_frame", gateway=url, frame=news.tag)
        else:
            self._owner.on_news(url, news)


async def _write(
    outbox: asyncio.Queue[LineMessage], send: Callable[[bytes], Awaitable[None]]
) -> None:
    while True:
        await send(frames.encode(await outbox.get()))
