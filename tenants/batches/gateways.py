"""The worker's end of its sockets to gateways: one to each that lives, for all batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from inference.gateway.lines import frames
from inference.gateway.lines.frames import Message, News
from inference.link.wire import MAX_FRAME_BYTES

log = structlog.get_logger(__name__)

REDIAL_S = 1.0
CONNECT_S = 5.0


class Owner(Protocol):
    """Who sends lines; the runner."""

    def joined(self, gateway: str) -> None:
        """Lines can be sent there."""
        ...

    def heard(self, gateway: str, news: News) -> None:
        """It said this."""
        ...

    def lost(self, gateway: str) -> None:
        """Nothing more is heard of what it was sent."""
        ...


class Gateways:
    """The sockets of one worker process. Use as an async context manager."""

    def __init__(self, owner: Owner, token: str) -> None:
        self._owner, self._token = owner, token
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._outboxes: dict[str, asyncio.Queue[Message]] = {}
        """Of those that are open."""

    @property
    def open(self) -> Iterable[str]:
        return self._outboxes

    def set(self, urls: Iterable[str]) -> None:
        """These live: dial them, and no others any more."""
        urls = set(urls)
        for url in self._dialling.keys() - urls:
            self._dialling.pop(url).cancel()
        for url in urls - self._dialling.keys():
            self._dialling[url] = asyncio.create_task(self._keep(url), name=f"lines {url}")

    def post(self, gateway: str, message: Message) -> None:
        """Send this, if it is open; what it has not sent is bounded by the windows of batches."""
        if (outbox := self._outboxes.get(gateway)) is not None:
            outbox.put_nowait(message)

    async def close(self) -> None:
        """Hang up."""
        tasks = [*self._dialling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, url: str) -> None:
        while True:
            try:
                await self._converse(url)
            except (OSError, TimeoutError, WebSocketException) as error:
                log.info("gateway_not_reached", gateway=url, reason=str(error))
            await asyncio.sleep(REDIAL_S)

    async def _converse(self, url: str) -> None:
        async with connect(
            _socket_url(url),
            additional_headers={"Authorization": f"Bearer {self._token}"},
            max_size=2 * MAX_FRAME_BYTES,
            open_timeout=CONNECT_S,
            proxy=None,
        ) as socket:
            outbox = self._outboxes[url] = asyncio.Queue()
            self._owner.joined(url)
            writer = asyncio.create_task(_write(outbox, socket.send))
            try:
                async for message in socket:
                    assert isinstance(message, bytes)
                    self._owner.heard(url, frames.to_worker.decode(message))
            finally:
                del self._outboxes[url]
                writer.cancel()
                self._owner.lost(url)


async def _write(outbox: asyncio.Queue[Message], send: Callable[[bytes], object]) -> None:
    with suppress(WebSocketException):  # the reader hears of it as well
        while True:
            await send(frames.encode(await outbox.get()))  # type: ignore[misc]


def _socket_url(url: str) -> str:
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}[parts.scheme]
    return urlunsplit((scheme, parts.netloc, f"{parts.path.rstrip('/')}/ws/lines", "", ""))
