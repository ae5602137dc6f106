"""The gateway's end of one engine link, and the attempts of requests that run on it."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from inference.errors import EngineLost, InferenceError, ProtocolViolation
from inference.gateway.fleet.dispatches import Bounds
from inference.gateway.fleet.service import Listener
from inference.gateway.measuring.measures import Measures, OnEngine
from inference.gateway.routing.engine_state import EngineState
from inference.interfaces.credentials import EngineCredential
from inference.link import wire
from inference.link.accounts import LedgerEntry
from inference.link.engine_info import Suspect
from inference.link.session import HEARTBEAT_S, Attempt, Side, State, negotiate
from inference.link.shell import Shell, Transport
from inference.link.wire import Frame
from inference.tracing import Attributes, Span

ENGINE_ID = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
"""The ids that fit in the ledger."""

MAX_OUTBOX_FRAMES = 4096
"""Frames waiting for one engine's socket. An engine that far behind takes no more requests."""

SILENT_S = 2.0
"""An engine reports once a second. One that missed two reports may be stopped, or cut off: until it
counts as lost, after LOST_S, other engines are preferred."""


class Owner(Protocol):
    """Owns the links of a gateway; implemented by the hub."""

    gateway_id: str
    gateways: list[str]
    measures: Measures

    async def admit(self, link: EngineLink) -> None:
        """An engine said hello and waits for its welcome.

        Raises:
            InferenceError: it may not join.
        """
        ...

    def joined(self, link: EngineLink) -> None:
        """The link is open."""
        ...

    def left(self, link: EngineLink, reason: str) -> None:
        """The link ended, or never opened."""
        ...

    def takes_no_more(self) -> None:
        """An engine has begun to drain, or is too far behind with reading (`EngineLink.full`)."""
        ...

    def caught_up(self) -> None:
        """An engine that may have been too far behind has read half of that."""
        ...

    def heard_stats(self, link: EngineLink, frame: wire.Stats) -> None:
        """The engine reported its stats."""
        ...

    def heard_unknown(self, link: EngineLink, frame: wire.Unknown) -> None:
        """The engine sent a frame that only newer versions know."""
        ...

    def heard_suspects(self, link: EngineLink, suspects: Sequence[Suspect]) -> None:
        """The engine reported requests with which engines fail."""
        ...

    def heard_orphans(self, link: EngineLink, frame: wire.Orphans) -> None:
        """The engine announced answers that have no gateway."""
        ...

    def bill(self, link: EngineLink, journal: str, entries: Sequence[LedgerEntry]) -> None:
        """The engine's journal reports ended requests.

        Raises:
            ProtocolViolation: the journal's name is invalid, or the report has too many entries.
        """
        ...


class Receiver(Protocol):
    """A request, which receives what the engines of its attempts send; implemented by
    `requests.stream.Stream`."""

    def push(self, delta: wire.Delta) -> None:
        """The engine sent some output."""
        ...

    def waits(self, wait: wire.Wait) -> None:
        """The engine reported what the request waits for."""
        ...

    def begun(self, leg: Leg) -> None:
        """The engine sends the first output of this attempt."""
        ...

    def ended(self, leg: Leg, done: wire.Done) -> None:
        """The engine sent `done` for this attempt."""
        ...

    def lost(self, leg: Leg) -> None:
        """The link to the engine ended."""
        ...


@dataclass(slots=True, eq=False)
class Leg:
    """One attempt of a request, on the link of its engine.

    `most` bounds the usage accepted from its engine, of this attempt and lower ones together.
    """

    stream: Receiver
    link: EngineLink
    attempt: int
    most: Bounds
    keeps: bool = False
    """Whether its engine keeps the answer for other gateways."""
    has_begun: bool = False
    news_at: float = 0.0
    """Monotonic time at which its engine last sent some of its output."""
    span: Span | None = None
    """Set if the request is traced."""
    sent_at: float = field(default_factory=time.monotonic)

    def end_span(self, error: str) -> None:
        """End the attempt's span; `error` says why the engine did not complete the request."""
        if self.span is not None:
            engine: Attributes = {
                "lorikeet.engine": self.link.engine.id,
                "lorikeet.attempt": self.attempt,
            }
            self.span.end(attributes=engine, error=error)

    def clamped(self, done: wire.Done) -> wire.Done:
        """`done` with its usage clamped to `most`: limits are charged with that usage, so an engine
        could otherwise use up a tenant's budget."""
        usage = self.most.clamped(done.usage)
        return done if usage is done.usage else msgspec.structs.replace(done, usage=usage)


class EngineLink:
    """One connected engine: its frames in both directions, and the attempts that run on it."""

    def __init__(self, owner: Owner, transport: Transport, credential: EngineCredential) -> None:
        self.engine: EngineState
        self.measured: OnEngine
        """Histograms of requests on this engine."""
        self.listener: Listener
        """What the engine was told about other engines' service; used by the hub."""
        self.credential = credential
        self.connected_at = datetime.now(UTC)
        self.unbegun = 0
        """Requests for which the engine has sent nothing yet."""
        self._owner = owner
        self._shell = Shell(Side.GATEWAY, transport, "the engine")
        self._session = self._shell.session
        self._outbox: deque[Frame] = deque()
        self._posted = asyncio.Event()
        self._legs: dict[Attempt, Leg] = {}
        self._loads: dict[str, asyncio.Future[wire.Loaded]] = {}
        self._heard = asyncio.Event()
        self._stepped_at = 0.0
        """When the last step frame came."""

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
        return self._session.heard_at + SILENT_S

    async def run(self) -> None:
        """Serve the link until it ends. Errors of the peer end it and are not raised."""
        broken: BaseException | None = None
        try:
            await self._greet()
            self._owner.joined(self)
            await self._shell.converse(self)
        except* (InferenceError, OSError) as errors:
            broken = errors.exceptions[0]
        finally:
            self._close(str(broken or "closed by the engine"))
        if broken is not None:  # last: no request may wait for a peer that perhaps does not read
            await self._shell.goodbye(broken)

    async def speaks(self, within_s: float) -> bool:
        """Whether the engine sends anything more within this time. A live one does so within
        HEARTBEAT_S."""
        self._heard.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._heard.wait()
        except TimeoutError:
            return False
        return self._session.state is State.OPEN

    def break_off(self, error: InferenceError) -> None:
        """End the link."""
        self._shell.break_off(error)

    def submit(self, leg: Leg, frame: wire.Submit) -> None:
        """Start an attempt of a request; its stream is called back from now on."""
        self.engine.took(frame)  # first: if this raises, no attempt is registered
        self.post(frame)
        self._legs[frame.id, frame.attempt] = leg
        self.unbegun += 1

    def adopt(self, leg: Leg, frame: wire.Adopt) -> None:
        """Adopt a request that the engine has; its stream is called back from now on."""
        self.post(frame)
        self._legs[frame.id, frame.attempt] = leg
        self.engine.dispatched += 1
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

    def drain(self) -> None:
        """Send no new work, and have the engine tell the other gateways the same."""
        self._drain()
        self.post(wire.Drain())

    def described(self) -> dict[str, Any]:
        """The engine, for display."""
        engine, info, stats = self.engine, self.engine.info, self.engine.stats
        return {
            "id": engine.id,
            "credential": self.credential.name,
            "kind": info.engine,
            "base_model": info.name,
            "revision": info.revision,
            "pool_revision": engine.pool,
            "engine_version": info.engine_version,
            "operations": list(info.operations),
            "parsers": dict(info.parsers),
            "max_model_len": info.max_model_len,
            "max_loras": info.max_loras,
            "max_lora_rank": info.max_lora_rank,
            "kv_tokens": info.kv_tokens,
            "connected_at": self.connected_at.isoformat(),
            "draining": engine.draining,
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
            self._owner.caught_up()
        return (frame,)

    def post(self, frame: Frame) -> None:
        """Queue a frame; dropped if the link is closed, because then nothing runs on it."""
        if self._session.state is not State.CLOSED:
            self._session.sent(frame, time.monotonic())
            self._outbox.append(frame)
            self._posted.set()
            if self.full:
                self._owner.takes_no_more()

    def take(self, frame: Frame) -> None:
        """Act on a frame from the engine."""
        self._heard.set()
        match frame:
            case wire.Step(deltas=deltas):
                self._push(deltas)
            case wire.Waits(waits=waits):
                self._note_waits(waits)
            case wire.Done():
                self._end(frame)
            case wire.Stats() | wire.Suspects() | wire.Orphans():
                self._note_news(frame)
            case wire.UsageReport(journal=journal, entries=entries):
                self._owner.bill(self, journal, entries)
            case wire.Loaded():
                self._end_load(frame)
            case wire.Drain():
                self._drain()
            case wire.Unknown():
                self._owner.heard_unknown(self, frame)
            case _:
                pass

    async def _greet(self) -> None:
        async with asyncio.timeout(HEARTBEAT_S):
            hello = await self._shell.receive()
        if not isinstance(hello, wire.Hello):
            raise ProtocolViolation("the link was closed before hello")
        version = negotiate(hello)
        if ENGINE_ID.fullmatch(hello.engine_id) is None:
            raise ProtocolViolation("an engine's id must have 1 to 255 printable characters")
        self._shell.peer = f"engine {hello.engine_id}"
        self.engine = EngineState(
            hello.engine_id,
            hello.model,
            hello.stats,
            run=hello.run,
            warm=hello.warm,
        )
        await self._owner.admit(self)
        self.measured = self._owner.measures.engine(hello.model.name, hello.engine_id)
        self.post(wire.Welcome(version, self._owner.gateway_id, self._owner.gateways))

    def _push(self, deltas: Sequence[wire.Delta]) -> None:
        now, inter_token = time.monotonic(), self.measured.inter_token_seconds
        # Most streams have one token now and had one in the last frame: these are added together.
        since, alike = self._stepped_at, 0
        for delta in deltas:
            attempt = delta.id, delta.attempt
            leg = self._legs[attempt]
            if not leg.has_begun:
                self.engine.began(attempt)
                self._begin(leg)
            elif delta.tokens == 1 and leg.news_at == since:
                alike += 1
            elif delta.tokens:
                inter_token.add((now - leg.news_at) / delta.tokens, delta.tokens)
            leg.news_at = now
            leg.stream.push(delta)
        if alike:
            inter_token.add(now - since, alike)
        self._stepped_at = now

    def _drain(self) -> None:
        self.engine.draining = True
        self._owner.takes_no_more()

    def _begin(self, leg: Leg) -> None:
        leg.has_begun = True
        self.unbegun -= 1
        leg.stream.begun(leg)

    def _end(self, done: wire.Done) -> None:
        leg = self._legs.pop((done.id, done.attempt))
        self.engine.ended((done.id, done.attempt))
        self.unbegun -= not leg.has_begun
        leg.stream.ended(leg, done)

    def _end_load(self, loaded: wire.Loaded) -> None:
        if not (answer := self._loads.pop(loaded.id)).done():
            answer.set_result(loaded)

    def _note_news(self, frame: wire.Stats | wire.Suspects | wire.Orphans) -> None:
        if isinstance(frame, wire.Stats):
            self.engine.note(frame)
            self._owner.heard_stats(self, frame)
        elif isinstance(frame, wire.Suspects):
            self._owner.heard_suspects(self, frame.suspects)
        else:
            self._owner.heard_orphans(self, frame)

    def _note_waits(self, waits: Sequence[wire.Wait]) -> None:
        for wait in waits:
            if leg := self._legs.get((wait.id, wait.attempt)):
                leg.stream.waits(wait)

    def _close(self, reason: str) -> None:
        self._session.close()
        self._heard.set()
        self._owner.left(self, reason)
        legs, self._legs = self._legs, {}
        for leg in legs.values():
            leg.stream.lost(leg)
        for answer in self._loads.values():
            if not answer.done():
                answer.set_exception(EngineLost(f"The engine was lost: {reason}."))
