"""The gateway's end of one engine link."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from inference.errors import EngineLost, InferenceError, ProtocolViolation
from inference.gateway.fleet.service import Listener
from inference.gateway.measuring.measures import OnEngine
from inference.gateway.routing.engine_state import EngineState
from inference.interfaces.credentials import EngineIdentity
from inference.link import wire
from inference.link.session import HEARTBEAT_S, LinkSide, LinkState, negotiate
from inference.link.shell import Shell, Transport
from inference.link.wire import Frame

ENGINE_ID = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
"""The ids that fit in the ledger."""

MAX_OUTBOX_FRAMES = 4096
"""Frames waiting for one engine's socket. An engine that far behind takes no more requests."""

SILENT_S = 2.0
"""An engine reports once a second. One that missed two reports may be stopped, or cut off: until it
counts as lost, after LOST_S, other engines are preferred."""


class EngineLink:
    """One connected engine: what it is, and its frames in both directions.

    Call `greeted`, post the welcome, then call `converse`, and `close` in any case.
    """

    def __init__(
        self,
        transport: Transport,
        credential: EngineIdentity,
        *,
        take: Callable[[EngineLink, Frame], None],
        room_changed: Callable[[EngineLink], None],
    ) -> None:
        """`take` is called with each frame of the engine. `room_changed` is called when the engine
        may have become, or may no longer be, too far behind with reading (`full`)."""
        self.engine: EngineState
        self.measured: OnEngine
        """Histograms of requests on this engine."""
        self.listener: Listener
        """What was sent to the engine about other engines' service."""
        self.credential = credential
        self.connected_at = datetime.now(UTC)
        self.unbegun = 0
        """Requests for which the engine has sent nothing yet."""
        self.stepped_at = 0.0
        """When the last step frame came; monotonic."""
        self._take, self._room_changed = take, room_changed
        self._shell = Shell(LinkSide.GATEWAY, transport, "the engine")
        self._session = self._shell.session
        self._outbox: deque[Frame] = deque()
        self._posted = asyncio.Event()
        self._loads: dict[str, asyncio.Future[wire.Loaded]] = {}
        self._received = asyncio.Event()

    @property
    def engine_id(self) -> str | None:
        """The engine's id; None before its hello."""
        return self.engine.id if hasattr(self, "engine") else None

    @property
    def full(self) -> bool:
        """Whether the engine is too far behind with reading frames."""
        return len(self._outbox) >= MAX_OUTBOX_FRAMES

    def is_silent(self, now: float) -> bool:
        """Whether the engine has sent nothing for SILENT_S."""
        return now >= self.silent_at

    @property
    def silent_at(self) -> float:
        """When the engine becomes silent, unless it sends something before."""
        return self._session.received_at + SILENT_S

    async def greeted(self) -> int:
        """Wait for the engine's hello, which tells what it is; returns the version of the protocol.

        Raises:
            ProtocolViolation: it sends something else, or its id is not allowed.
            TimeoutError: it sends nothing.
        """
        async with asyncio.timeout(HEARTBEAT_S):
            hello = await self._shell.receive()
        if not isinstance(hello, wire.Hello):
            raise ProtocolViolation("the link was closed before hello")
        version = negotiate(hello)
        if ENGINE_ID.fullmatch(hello.engine_id) is None:
            raise ProtocolViolation("an engine's id must have 1 to 255 printable characters")
        self._shell.peer = f"engine {hello.engine_id}"
        self.engine = EngineState(
            hello.engine_id, hello.model, hello.stats, run=hello.run, warm=hello.warm
        )
        return version

    async def converse(self) -> None:
        """Read and write until the link ends. Raises an ExceptionGroup if it breaks."""
        await self._shell.converse(self)

    def close(self, reason: str) -> None:
        """The link has ended: nothing more is sent or loaded."""
        self._session.close()
        self._received.set()
        for answer in self._loads.values():
            if not answer.done():
                answer.set_exception(EngineLost(f"The engine was lost: {reason}."))

    async def goodbye(self, error: BaseException) -> None:
        """Tell the engine why the link has ended, as far as it still reads."""
        await self._shell.goodbye(error)

    async def speaks(self, within_s: float) -> bool:
        """Whether the engine sends anything more within this time. A live one does so within
        HEARTBEAT_S."""
        self._received.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._received.wait()
        except TimeoutError:
            return False
        return self._session.state is LinkState.OPEN

    def break_off(self, error: InferenceError) -> None:
        """End the link."""
        self._shell.break_off(error)

    def send(self, frame: wire.Submit | wire.Adopt) -> None:
        """Give the engine a request."""
        if isinstance(frame, wire.Submit):
            self.engine.sent(frame)  # first: if this raises, nothing was sent
        else:
            self.engine.dispatched += 1
        self.post(frame)
        self.unbegun += 1

    async def load(self, frame: wire.Load) -> dict[str, Any]:
        """Load (and probe) an adapter; waits for the engine's report.

        Raises:
            InferenceError: the engine's error, or EngineLost.
        """
        answer = self._loads[frame.id] = asyncio.get_running_loop().create_future()
        self.post(frame)
        loaded: wire.Loaded = await answer
        if loaded.fault is not None:
            raise loaded.fault.error()
        return loaded.report

    def described(self) -> dict[str, Any]:
        """The engine, for display."""
        engine, info, stats = self.engine, self.engine.info, self.engine.stats
        return {
            "id": engine.id,
            "credential": self.credential.name,
            "kind": info.engine,
            "overflow": info.overflow,
            "role": info.role,
            "base_model": info.name,
            "revision": info.revision,
            "pool_revision": engine.pool,
            "engine_version": info.engine_version,
            "degraded": list(info.degraded),
            "profile": info.profile,
            "proof": info.proof,
            "operations": list(info.operations),
            "parsers": dict(info.parsers),
            "max_model_len": info.max_model_len,
            "max_loras": info.max_loras,
            "max_lora_rank": info.max_lora_rank,
            "kv_tokens": info.kv_tokens,
            "connected_at": self.connected_at.isoformat(),
            "draining": engine.draining,
            "asleep": stats.asleep,
            "running": stats.running,
            "waiting": stats.waiting,
            "queued": stats.queued,
            "kv_usage": stats.kv_usage,
            "resident_adapters": list(engine.resident),
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "completion_tokens": stats.completion_tokens,
            "failures": stats.failures,
            "last_failure": stats.last_failure,
            "refused_suspects": stats.refused_suspects,
        }

    # --- what the shell asks (shell.End) ---------------------------------------------------------

    async def outgoing(self) -> tuple[Frame]:
        """The next posted frame. Only one, so that the others still count for `full`."""
        while not self._outbox:
            self._posted.clear()
            await self._posted.wait()
        frame = self._outbox.popleft()
        if len(self._outbox) == MAX_OUTBOX_FRAMES // 2:
            self._room_changed(self)
        return (frame,)

    def post(self, frame: Frame) -> None:
        """Queue a frame; dropped if the link is closed, because then nothing runs on it."""
        if self._session.state is not LinkState.CLOSED:
            self._session.sent(frame, time.monotonic())
            self._outbox.append(frame)
            self._posted.set()
            if self.full:
                self._room_changed(self)

    def take(self, frame: Frame) -> None:
        """Act on a frame from the engine."""
        self._received.set()
        if not isinstance(frame, wire.Loaded):
            self._take(self, frame)
        elif not (answer := self._loads.pop(frame.id)).done():
            answer.set_result(frame)
