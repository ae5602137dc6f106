"""The agent's end of one engine link: dials a gateway, and dials again when the link breaks."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from inference.agent.outbox import Outbox
from inference.errors import InferenceError, ProtocolViolation
from inference.link import wire
from inference.link.session import HEARTBEAT_S, LOST_S, Session, Side, State
from inference.link.wire import Delta, Frame, Wait

log = structlog.get_logger(__name__)

BACKOFF_S = (0.2, 5.0)
"""Shortest and longest pause between two dials of a gateway."""


class Owner(Protocol):
    """Who acts on what a link hears; the agent."""

    def hello(self) -> wire.Hello:
        """What to greet a gateway with."""
        ...

    def heard(self, link: Link, frame: Frame) -> None:
        """A frame came from the gateway; must not block or raise."""
        ...

    def dropped(self, link: Link) -> None:
        """The link broke: whatever it asked for is of no use to anybody now."""
        ...

    def sending(self) -> None:
        """The link is about to send what it has.

        Raises:
            InferenceError: it must not; the link then breaks.
        """
        ...


class Link:
    """One gateway, by its base URL."""

    def __init__(self, owner: Owner, url: str, token: str) -> None:
        self.url = url
        self.draining = False
        self.mark = 0
        """Up to where the gateway was told who was served (`Queue.served_since`)."""
        self._owner, self._token = owner, token
        self._outbox = Outbox()
        self._news = asyncio.Event()
        self._flushed = asyncio.Event()
        self._session = Session(Side.AGENT, time.monotonic())
        self._session.close()

    @property
    def open(self) -> bool:
        """Whether the gateway hears us now."""
        return self._session.state is State.OPEN

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        pause = BACKOFF_S[0]
        while True:
            try:
                async with self._connect() as socket:
                    await self._converse(socket)
                pause = BACKOFF_S[0]
            except* (OSError, InvalidHandshake, ConnectionClosed, InferenceError) as errors:
                if self.open:
                    pause = BACKOFF_S[0]
                log.warning("link_down", gateway=self.url, reason=str(errors.exceptions[0]))
            except* Exception:  # a defect; this gateway is not given up for it
                log.exception("link_failed", gateway=self.url)
            finally:
                self._drop()
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, BACKOFF_S[1])

    def add(self, delta: Delta) -> None:
        """A stream of this gateway gained something; leaves with the next step frame."""
        if self.open:
            self._outbox.add(delta)
            self._wake()

    def note(self, wait: Wait) -> None:
        """A request of this gateway waits for something else now."""
        if self.open:
            self._outbox.note(wait)
            self._wake()

    def put(self, frame: Frame) -> None:
        """Send a frame, after all deltas added so far."""
        if self.open:
            self._outbox.put(frame.sendable() if isinstance(frame, wire.Done) else frame)
            self._wake()

    def drain(self) -> None:
        """Ask for no new work."""
        self.draining = True
        self.put(wire.Drain())

    async def flushed(self) -> None:
        """Wait until everything was handed to the socket, or the link broke."""
        if self.open and self._outbox:
            await self._flushed.wait()

    def _wake(self) -> None:
        self._flushed.clear()
        self._news.set()

    def _connect(self) -> connect:
        parts = urlsplit(self.url)
        scheme = {"http": "ws", "https": "wss"}[parts.scheme]
        return connect(
            urlunsplit((scheme, parts.netloc, f"{parts.path.rstrip('/')}/ws/engine", "", "")),
            additional_headers={"Authorization": f"Bearer {self._token}"},
            max_size=wire.MAX_FRAME_BYTES,
            compression=None,  # small frames on a fast network
            ping_interval=None,  # the session has its own heartbeat
            open_timeout=LOST_S,
            close_timeout=1,
            proxy=None,
        )

    async def _converse(self, socket: ClientConnection) -> None:
        self._session = Session(Side.AGENT, time.monotonic())
        await self._send(socket, self._owner.hello())
        async with asyncio.TaskGroup() as tasks:
            both = [
                tasks.create_task(self._write(socket)),
                tasks.create_task(self._watch()),
            ]
            async for message in socket:
                self._take(message)
            for task in both:
                task.cancel()

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, str):
            raise ProtocolViolation("a text message on a binary link")
        frame = wire.decode(message)
        self._session.received(frame, time.monotonic())
        if isinstance(frame, wire.Error):
            raise frame.fault.error()
        if isinstance(frame, wire.Welcome):
            log.info("link_up", gateway=self.url, version=frame.version)
            if self.draining:
                self.put(wire.Drain())
        self._owner.heard(self, frame)

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(0)  # the `done` that follows a last delta goes along with it
            self._news.clear()
            self._owner.sending()
            for frame in self._outbox.take():
                await self._send(socket, frame)
            if not self._outbox:
                self._flushed.set()

    async def _send(self, socket: ClientConnection, frame: Frame) -> None:
        self._session.sent(frame, time.monotonic())
        await socket.send(wire.encode(frame))

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + HEARTBEAT_S / 2
            await asyncio.sleep(HEARTBEAT_S / 2)
            now = time.monotonic()
            self._session.held_up(now - due, now)
            if self._session.lost(now):
                raise ConnectionError(f"{self.url} was silent for {LOST_S:.0f} s")
            if self._session.heartbeat_due(now):
                self.put(wire.Heartbeat())

    def _drop(self) -> None:
        self._session.close()
        self._outbox = Outbox()
        self.mark = 0
        self._flushed.set()
        self._owner.dropped(self)
