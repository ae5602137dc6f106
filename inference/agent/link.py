"""The agent's end of one engine link: dials a gateway, and dials again when the link breaks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidHandshake

from inference.agent.outbox import Outbox, residency_change
from inference.agent.warm_prefixes import PrefixChange
from inference.errors import InferenceError
from inference.link import wire
from inference.link.session import LOST_S, LinkSide, LinkState
from inference.link.shell import Shell
from inference.link.urls import socket_url
from inference.link.wire import Delta, Frame, Wait

log = structlog.get_logger(__name__)

BACKOFF_S = (0.2, 5.0)
"""Shortest and longest pause between two dials of a gateway."""
SHOWN_TAG = 40
"""Characters of an unknown frame's tag in the log."""


class LinkOwner(Protocol):
    """Acts on what a link receives; implemented by the agent."""

    def hello(self) -> wire.Hello:
        """The first frame to a gateway."""
        ...

    def warmed_since(self, mark: int) -> PrefixChange:
        """What the engine's prefix cache stored and removed after this mark."""
        ...

    def handle(self, link: AgentLink, frame: Frame) -> None:
        """A frame came from the gateway; must not block or raise."""
        ...

    def dropped(self, link: AgentLink) -> None:
        """The link broke, or could not be opened: nothing more reaches its gateway over it."""
        ...

    def sending(self) -> None:
        """Called before the link sends what it has.

        Raises:
            InferenceError: nothing may be sent; the link is then closed.
        """
        ...


class DialledSocket:
    """A websocket that this end opened, as the shell's Transport."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def receive(self) -> bytes | None:
        """The next message; None when the connection is closed."""
        try:
            return await self._socket.recv(decode=False)
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as error:
            raise ConnectionResetError(str(error)) from error

    async def send(self, message: bytes) -> None:
        """Write one message; waits while the peer is slow."""
        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            raise ConnectionResetError(str(error)) from error

    async def close(self, reason: str) -> None:
        """Close with the reason, cut to what a close frame holds."""
        await self._socket.close(1008, reason[:60])


class AgentLink:
    """The link to one gateway, by the gateway's base URL."""

    def __init__(self, owner: LinkOwner, url: str, credential: str) -> None:
        self.url = url
        self.draining = False
        self.engine_count = 0
        """How many engines of this base model the gateway says are connected to it."""
        self._owner, self._credential = owner, credential
        self._outbox = Outbox()
        self._waiting = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._shell: Shell | None = None
        """The current connection's, if there is one."""
        self._sent_resident: list[str] = []
        self._warm_mark = 0
        """Mark up to which the gateway was told what the prefix cache holds."""

    @property
    def open(self) -> bool:
        """Whether frames can be sent to the gateway now."""
        return self._shell is not None and self._shell.session.state is LinkState.OPEN

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        pause = BACKOFF_S[0]
        while True:
            try:
                async with self._connect() as socket:
                    await self._converse(socket)
                pause = BACKOFF_S[0]
            except* (OSError, InvalidHandshake, InferenceError) as errors:
                if self.open:
                    pause = BACKOFF_S[0]
                log.warning("link_down", gateway=self.url, reason=str(errors.exceptions[0]))
            except* Exception:  # a bug; keep dialling this gateway all the same
                log.exception("link_failed", gateway=self.url)
            finally:
                self._drop()
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, BACKOFF_S[1])

    def add(self, delta: Delta) -> None:
        """Send what one of this gateway's streams gained, in the next step frame."""
        if self.open:
            self._outbox.add(delta)
            self._wake()

    def note(self, wait: Wait) -> None:
        """Tell the gateway that one of its requests now waits for something else."""
        if self.open:
            self._outbox.note(wait)
            self._wake()

    def post(self, frame: Frame) -> None:
        """Send a frame, after all deltas added so far."""
        if self.open:
            self._outbox.put(frame.sendable() if isinstance(frame, wire.Done) else frame)
            self._wake()

    def drain(self) -> None:
        """Ask the gateway for no new work, also after a reconnect."""
        self.draining = True
        self.post(wire.Drain())

    async def flushed(self) -> None:
        """Wait until everything was handed to the socket, or the link broke."""
        await self._flushed.wait()

    def _wake(self) -> None:
        if not self._waiting.is_set():
            self._flushed.clear()
            self._waiting.set()

    def _connect(self) -> connect:
        return connect(
            socket_url(self.url, "/ws/engine"),
            additional_headers={"Authorization": f"Bearer {self._credential}"},
            max_size=wire.MAX_FRAME_BYTES,
            compression=None,  # small frames on a fast network
            ping_interval=None,  # the session has its own heartbeat
            open_timeout=LOST_S,
            close_timeout=1,
            proxy=None,
        )

    async def _converse(self, socket: ClientConnection) -> None:
        shell = self._shell = Shell(LinkSide.AGENT, DialledSocket(socket), self.url)
        hello = self._owner.hello()
        self._sent_resident = hello.stats.resident
        self._warm_mark = self._owner.warmed_since(self._warm_mark).mark  # `hello` has all before
        try:
            await shell.send(hello)
            await shell.converse(self)
        except* InferenceError as errors:
            await shell.goodbye(errors.exceptions[0])
            raise

    # --- what the shell asks (shell.End) ---------------------------------------------------------

    def take(self, frame: Frame) -> None:
        """Act on what the gateway says."""
        match frame:
            case wire.Welcome(version=version):
                log.info("link_up", gateway=self.url, version=version)
                if self.draining:
                    self.post(wire.Drain())
            case wire.UnknownFrame(name=name):
                log.info("unknown_frame", gateway=self.url, frame=name[:SHOWN_TAG])
        self._owner.handle(self, frame)

    async def outgoing(self) -> Sequence[Frame]:
        """All frames to send, as soon as there are any."""
        if not self._outbox:
            self._flushed.set()
        await self._waiting.wait()
        await asyncio.sleep(0)  # so that the `done` after a last delta goes along with it
        self._waiting.clear()
        self._owner.sending()
        assert self._shell is not None
        session, now = self._shell.session, time.monotonic()
        frames = [self._as_change(frame) for frame in self._outbox.take()]
        for frame in frames:
            session.sent(frame, now)
        return frames

    def _as_change(self, frame: Frame) -> Frame:
        """In statistics, put what changed on the engine since this gateway was last told, instead
        of all that is there; other frames are returned unchanged."""
        if not isinstance(frame, wire.Stats):
            return frame
        resident = frame.stats.resident
        loaded, evicted = residency_change(self._sent_resident, resident)
        self._sent_resident = resident
        stats = msgspec.structs.replace(frame.stats, resident=[])
        change = self._owner.warmed_since(self._warm_mark)
        self._warm_mark = change.mark
        return msgspec.structs.replace(
            frame,
            stats=stats,
            loaded=loaded,
            evicted=evicted,
            warm=change.warm,
            cold=change.cold,
            anew=change.anew,
        )

    def _drop(self) -> None:
        if self._shell is not None:
            self._shell.session.close()
            self._shell = None
        self._outbox = Outbox()
        self._waiting.clear()
        self.engine_count = 0
        self._flushed.set()
        self._owner.dropped(self)
