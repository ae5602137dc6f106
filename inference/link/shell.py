"""The tasks around one connection of an engine link, the same at both ends.

`Session` decides which frames are legal, `wire` and `versions` encode them; the shell owns the
reading, the writing and the clock. Each end handles the frames in its `End`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import NoReturn, Protocol

import structlog

from inference.errors import InferenceError, ProtocolViolation
from inference.link import versions, wire
from inference.link.session import HEARTBEAT_S, LOST_S, LinkSide, Session
from inference.link.wire import Fault, Frame

log = structlog.get_logger(__name__)

GOODBYE_S = 1.0
"""Time limit of telling the peer why the link ends, and of closing it."""


class Transport(Protocol):
    """One websocket of binary messages. Errors of the connection are OSError."""

    async def receive(self) -> bytes | None:
        """The next message; None when the connection is closed."""
        ...

    async def send(self, message: bytes) -> None:
        """Write one message; waits while the peer is slow."""
        ...

    async def close(self, reason: str) -> None:
        """Close the connection."""
        ...


class End(Protocol):
    """The frames that one end of the link sends, and its handling of received ones."""

    async def outgoing(self) -> Iterable[Frame]:
        """Wait for the next frames to write; each has passed `Session.sent`.

        Raises:
            InferenceError: nothing may be sent any more; the link then breaks.
        """
        ...

    def take(self, frame: Frame) -> None:
        """Act on a frame; must not block.

        Raises:
            InferenceError: the link breaks.
        """
        ...

    def post(self, frame: Frame) -> None:
        """Queue a frame, to be returned by `outgoing`."""
        ...


class Shell:
    """One connection. Call `converse` once; `goodbye` only if that raised."""

    def __init__(self, side: LinkSide, transport: Transport, peer: str) -> None:
        """`peer` names the other end in errors."""
        self.session = Session(side, time.monotonic())
        self.peer = peer
        self._transport = transport
        self._broken: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._received_error = False

    async def converse(self, end: End) -> None:
        """Read, write and keep the link alive until the peer closes it.

        Raises:
            ExceptionGroup: of OSError, if the connection breaks or the peer is silent for LOST_S,
                and InferenceError, if either end breaks the rules or the peer sent `error`.
        """
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(self._write(end)),
                tasks.create_task(self._watch(end)),
                tasks.create_task(self._wait_for_break()),
            ]
            while (frame := await self.receive()) is not None:
                end.take(frame)
            for task in beside:
                task.cancel()

    def break_off(self, error: InferenceError) -> None:
        """Make `converse` raise this at once, whether or not the peer still reads."""
        if not self._broken.done():
            self._broken.set_exception(error)

    async def receive(self) -> Frame | None:
        """The next frame; None when the connection is closed.

        Raises:
            InferenceError: the peer's frame is illegal, or is `error`.
            OSError: the connection broke.
        """
        message = await self._transport.receive()
        if message is None:
            return None
        frame = wire.decode(message)
        self.session.received(frame, time.monotonic())
        if isinstance(frame, wire.Error):
            self._received_error = True
            raise frame.fault.error()
        return frame

    async def send(self, frame: Frame) -> None:
        """Write a frame directly, bypassing `End.outgoing`; only before `converse`."""
        self.session.sent(frame, time.monotonic())
        await self._put(frame)

    async def goodbye(self, error: BaseException) -> None:
        """Tell the peer why the link ends, if it still listens, and close."""
        if self._received_error:
            return
        named = error if isinstance(error, InferenceError) else ProtocolViolation(str(error))
        fault = Fault.of(named)
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._put(wire.Error(fault))
                await self._transport.close(fault.message)
        except (OSError, TimeoutError):
            log.debug("goodbye_unheard", peer=self.peer, reason=fault.message)

    async def _write(self, end: End) -> None:
        while True:
            for frame in await end.outgoing():
                await self._put(frame)

    async def _put(self, frame: Frame) -> None:
        message = versions.encode(frame, self.session.version)
        if message is not None:
            await self._transport.send(message)

    async def _watch(self, end: End) -> None:
        while True:
            due = time.monotonic() + HEARTBEAT_S / 2
            await asyncio.sleep(HEARTBEAT_S / 2)
            now = time.monotonic()
            self.session.held_up(now - due, now)
            if self.session.lost(now):
                raise ConnectionError(f"{self.peer} was silent for {LOST_S:.0f} s")
            if self.session.heartbeat_due(now):
                end.post(wire.Heartbeat())

    async def _wait_for_break(self) -> None:
        await self._broken
