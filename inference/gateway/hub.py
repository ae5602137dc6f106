"""The gateway's end of the engines: their links, and the requests in flight on them.

One Hub per gateway process, on one event loop; no locks. The websocket edge hands each connected
engine to `serve`; the HTTP edge opens a `Stream` per request with `submit` and reads it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from inference.errors import EngineLost, InferenceError, NoEngine, Overloaded, ProtocolViolation
from inference.gateway.routing import EngineState, choose
from inference.gateway.stream import Stream, Watch
from inference.grants import Grant, Limiter, Recorder, Reservation, Target
from inference.link import wire
from inference.link.session import HEARTBEAT_S, Session, Side, State, negotiate
from inference.link.wire import Account, AdapterRef, Fault, Frame, LedgerEntry

log = structlog.get_logger(__name__)

MAX_OUTBOX_FRAMES = 4096
"""Frames waiting for one engine's socket. An engine that far behind takes no more requests."""


MAX_UNBILLED = 100_000
"""Beyond it the oldest is settled twice, which changes nothing."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request that may start: who asks for what, with what was reserved for it.

    `grows`: it may generate more than that, as far as more can be reserved meanwhile.
    `prompt_tokens` is an estimate; `max_tokens` bounds each choice of a body that doesn't. `watch`
    is told what the request waits for, until its first token.
    """

    grant: Grant
    target: Target
    reservation: Reservation
    kind: str
    body: bytes
    lane: str
    timeout_s: float
    prompt_tokens: int = 0
    max_tokens: int | None = None
    grows: bool = False
    watch: Watch | None = None

    def frame(self) -> wire.Submit:
        """What the engine is told."""
        grant, target = self.grant, self.target
        account = Account(
            tenant_id=grant.tenant_id,
            key_id=grant.key_id,
            started_at=time.time(),
            base_model=target.base_model,
            adapter_id=target.adapter_id,
            version_id=target.version_id,
        )
        return wire.Submit(
            id=self.reservation.id,
            kind=self.kind,
            body=self.body,
            model=target.model,
            tenant=grant.tenant,
            salt=grant.salt,
            adapter=target.adapter,
            weight=grant.weight,
            timeout_s=self.timeout_s,
            account=account,
            lane=self.lane,
            max_tokens=self.max_tokens,
            prompt_tokens=self.prompt_tokens,
            watched=self.watch is not None,
        )


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


class EngineLink:
    """One connected engine: its session, its outgoing frames, its streams."""

    def __init__(self, hub: Hub, transport: Transport) -> None:
        self.engine: EngineState
        self.connected_at = datetime.now(UTC)
        self._hub, self._transport = hub, transport
        self._session = Session(Side.GATEWAY, time.monotonic())
        self._outbox: asyncio.Queue[Frame] = asyncio.Queue()
        self._streams: dict[str, Stream] = {}
        self._loads: dict[str, asyncio.Future[wire.Loaded]] = {}

    @property
    def full(self) -> bool:
        """Whether the engine is too far behind with reading what it is sent."""
        return self._outbox.qsize() >= MAX_OUTBOX_FRAMES

    async def run(self) -> None:
        """Serve the link until it ends, for whatever reason of the peer's."""
        broken: BaseException | None = None
        try:
            await self._greet()
            self._hub.joined(self)
            await self._serve()
        except* (InferenceError, OSError) as errors:
            broken = errors.exceptions[0]
        finally:
            self._close(str(broken or "closed by the engine"))
        if broken is not None:  # last: nobody's answer waits for a peer that may not listen
            await self._say_goodbye(broken)

    def post(self, frame: Frame) -> None:
        """Queue a frame; dropped if the link is closed, for then its streams have ended."""
        if self._session.state is not State.CLOSED:
            self._session.sent(frame, time.monotonic())
            self._outbox.put_nowait(frame)

    def submit(self, stream: Stream, frame: wire.Submit) -> None:
        """Start a request; the stream is settled by this link from now on."""
        self.post(frame)
        self._streams[stream.id] = stream
        self.engine.dispatched += 1

    async def load(self, frame: wire.Load) -> dict[str, Any]:
        """Load (and probe) an adapter; waits for the engine's report.

        Raises:
            InferenceError: what the engine said, or EngineLost.
        """
        answer = self._loads[frame.id] = asyncio.get_running_loop().create_future()
        self.post(frame)
        loaded: wire.Loaded = await answer
        if loaded.fault is not None:
            raise loaded.fault.error()
        return loaded.report

    def drain(self) -> None:
        """Send no new work; the engine says so to the other gateways."""
        self.engine.draining = True
        self.post(wire.Drain())

    def end_streams(self, key_id: int, error: InferenceError) -> None:
        """End every stream of this key."""
        for stream in list(self._streams.values()):
            if stream.grant.key_id == key_id:
                stream.end(error)

    async def _greet(self) -> None:
        async with asyncio.timeout(HEARTBEAT_S):
            hello = await self._next()
        if not isinstance(hello, wire.Hello):
            raise ProtocolViolation("the link was closed before hello")
        welcome = wire.Welcome(negotiate(hello), self._hub.gateway_id, self._hub.gateways)
        self.engine = EngineState(hello.engine_id, hello.model, hello.stats)
        self.post(welcome)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(self._write()), tasks.create_task(self._watch())]
            while (frame := await self._next()) is not None:
                self._take(frame)
            for task in both:
                task.cancel()

    async def _next(self) -> Frame | None:
        message = await self._transport.receive()
        if message is None:
            return None
        frame = wire.decode(message)
        self._session.received(frame, time.monotonic())
        return frame

    async def _write(self) -> None:
        while True:
            await self._transport.send(wire.encode(await self._outbox.get()))

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + HEARTBEAT_S / 2
            await asyncio.sleep(HEARTBEAT_S / 2)
            now = time.monotonic()
            self._session.held_up(now - due, now)
            if self._session.lost(now):
                raise EngineLost(f"engine {self.engine.id} was silent for too long")
            if self._session.heartbeat_due(now):
                self.post(wire.Heartbeat())

    def _take(self, frame: Frame) -> None:
        match frame:
            case wire.Step(deltas=deltas):
                for delta in deltas:
                    self._streams[delta.id].push(delta)
            case wire.Waits(waits=waits):
                self._note_waits(waits)
            case wire.Done(id=id):
                self.engine.dispatched -= 1
                self._streams.pop(id).settle(frame)
            case wire.Stats():
                self.engine.stats = frame.stats
                self._hub.heard_stats(self, frame)
            case wire.UsageReport(journal=journal, entries=entries):
                self._hub.bill(self, journal, entries)
            case wire.Loaded():
                self._end_load(frame)
            case wire.Drain():
                self.engine.draining = True
            case wire.Error(fault=fault):
                raise fault.error()
            case _:
                pass

    def _end_load(self, loaded: wire.Loaded) -> None:
        if not (answer := self._loads.pop(loaded.id)).done():
            answer.set_result(loaded)

    def _note_waits(self, waits: Sequence[wire.Wait]) -> None:
        for wait in waits:
            if stream := self._streams.get(wait.id):
                stream.waits(wait)

    async def _say_goodbye(self, error: BaseException) -> None:
        """Tell the peer why, as far as it still listens."""
        broken = error if isinstance(error, InferenceError) else ProtocolViolation(str(error))
        try:
            async with asyncio.timeout(1):
                await self._transport.send(wire.encode(wire.Error(Fault.of(broken))))
                await self._transport.close(broken.message)
        except (OSError, TimeoutError):
            log.debug("engine_goodbye_unheard", reason=broken.message)

    def _close(self, reason: str) -> None:
        self._session.close()
        self._hub.left(self, reason)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lose()
        for answer in self._loads.values():
            if not answer.done():
                answer.set_exception(EngineLost(f"The engine was lost: {reason}."))


class Hub:
    """All engines connected to this gateway process, and all its requests in flight."""

    def __init__(
        self, gateway_id: str, engine_token: str, recorder: Recorder, limiter: Limiter
    ) -> None:
        """`gateway_id` is the base URL under which engines reach this process."""
        self.gateway_id = gateway_id
        self.gateways: list[str] = [gateway_id]
        self.closing = False
        """Set to refuse new requests while the open ones finish."""
        self._token = engine_token.encode()
        self._recorder, self._limiter = recorder, limiter
        self._unbilled: OrderedDict[str, None] = OrderedDict()
        """Requests whose limits are settled here, until the engine's journal reports them."""
        self._pins: dict[str, list[AdapterRef]] | None = None
        """What is to stay loaded, by base model; None before that is known."""
        self._links: dict[str, EngineLink] = {}
        """By engine, the newest of its links; the others get nothing new."""
        self._open: dict[EngineLink, None] = {}
        """All links: several URLs that an agent dials, a load balancer's too, may lead here."""
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._model_seen: Callable[[wire.ModelInfo], None] = lambda info: None

    @property
    def in_flight(self) -> int:
        """Requests that are not settled."""
        return self._in_flight

    # --- engines ---------------------------------------------------------------------------------

    def token_matches(self, token: str) -> bool:
        """Whether this is the engines' token; in constant time."""
        return hmac.compare_digest(token.encode(), self._token)

    def on_model(self, callback: Callable[[wire.ModelInfo], None]) -> None:
        """Call `callback` with the base model of each engine that connects."""
        self._model_seen = callback

    async def serve(self, transport: Transport) -> None:
        """Run one engine's connection to its end."""
        await EngineLink(self, transport).run()

    def joined(self, link: EngineLink) -> None:
        """A link is open. An older one of the same engine may be dead, noticed or not."""
        engine = link.engine
        self._links[engine.id] = link
        self._open[link] = None
        log.info("engine_joined", engine=engine.id, model=engine.info.name, kind=engine.info.engine)
        if self._pins is not None:
            link.post(wire.Pins(self._pins.get(engine.info.name, [])))
        self._model_seen(engine.info)

    def left(self, link: EngineLink, reason: str) -> None:
        """A link ended. The engine stays while it has another."""
        self._open.pop(link, None)
        engine = getattr(link, "engine", None)
        if engine is None:
            log.warning("engine_refused", reason=reason)
        elif self._links.get(engine.id) is link:
            del self._links[engine.id]
            self._links |= {one.engine.id: one for one in self._open if one.engine.id == engine.id}
            stays = engine.id in self._links
            log.warning("engine_left", engine=engine.id, reason=reason, stays=stays)

    def set_gateways(self, urls: list[str]) -> None:
        """The live gateways; every engine hears of a change."""
        if urls != self.gateways:
            self.gateways = urls
            for link in self._links.values():
                link.post(wire.Gateways(urls))

    def set_pins(self, pins: dict[str, list[AdapterRef]]) -> None:
        """The adapters to keep loaded, by base model; engines hear of what changed."""
        for link in self._links.values():
            name = link.engine.info.name
            if self._pins is None or pins.get(name, []) != self._pins.get(name, []):
                link.post(wire.Pins(pins.get(name, [])))
        self._pins = pins

    def heard_stats(self, source: EngineLink, frame: wire.Stats) -> None:
        """An engine said how it is, and whom it served: the others on its base model hear that."""
        self._recorder.totals(source.engine.id, frame.stats)
        if frame.served:
            served = wire.Served(source.engine.id, frame.run, frame.served)
            for id, link in self._links.items():
                if id != source.engine.id and link.engine.info.name == source.engine.info.name:
                    link.post(served)

    def bill(self, link: EngineLink, journal: str, entries: Sequence[LedgerEntry]) -> None:
        """Requests ended, by an engine's journal: write the ledger, then tell the engine so.

        Those that another gateway had taken are settled in the limits here: it may have died.
        """

        def written(ids: Sequence[str]) -> None:
            link.post(wire.UsageAck(list(ids)))

        for entry in entries:
            if entry.id in self._unbilled:
                del self._unbilled[entry.id]
            else:
                self._limiter.settle(entry.id, entry.usage)
        self._recorder.record(link.engine.id, journal, entries, written)

    def unload(self, digest: str) -> None:
        """Every engine forgets this adapter as soon as nothing uses it."""
        for link in self._links.values():
            link.post(wire.Unload(digest))

    def drain(self, engine_id: str) -> None:
        """The engine gets no new work until its process starts anew; what runs is finished."""
        if link := self._links.get(engine_id):
            log.info("engine_drained", engine=engine_id)
            link.drain()

    async def probe(self, base_model: str, adapter: AdapterRef) -> dict[str, Any]:
        """Load the adapter on an engine and try it; `agent.engine.ProbeReport` as a dict.

        Raises:
            NoEngine: none serves this base model.
            AdapterLoadFailed: it cannot be loaded.
            EngineLost: the engine went away meanwhile.
        """
        link = self._choose(base_model, adapter)
        return await link.load(wire.Load(new_id(), adapter, probe=True))

    def snapshot(self) -> list[dict[str, Any]]:
        """The connected engines, for display. From any thread."""
        return [
            {
                "id": link.engine.id,
                "kind": link.engine.info.engine,
                "base_model": link.engine.info.name,
                "max_model_len": link.engine.info.max_model_len,
                "max_loras": link.engine.info.max_loras,
                "max_lora_rank": link.engine.info.max_lora_rank,
                "kv_tokens": link.engine.info.kv_tokens,
                "connected_at": link.connected_at.isoformat(),
                "draining": link.engine.draining,
                "running": link.engine.stats.running,
                "waiting": link.engine.stats.waiting,
                "queued": link.engine.stats.queued,
                "kv_usage": link.engine.stats.kv_usage,
                "resident_adapters": list(link.engine.stats.resident),
                "prompt_tokens": link.engine.stats.prompt_tokens,
                "cached_tokens": link.engine.stats.cached_tokens,
                "completion_tokens": link.engine.stats.completion_tokens,
            }
            for link in list(self._links.values())
        ]

    # --- requests --------------------------------------------------------------------------------

    def submit(self, order: Order) -> Stream:
        """Start a request on the engine that suits it best.

        Raises:
            NoEngine, Overloaded: none can take it; nothing was started.
        """
        if self.closing:
            raise Overloaded("This gateway is shutting down.", retry_after_s=1)
        link = self._choose(order.target.base_model, order.target.adapter)
        stream = Stream(
            order.reservation.id,
            order.grant,
            order.target,
            engine_id=link.engine.id,
            reservation=order.reservation,
            limiter=self._limiter,
            grows=order.grows,
            bound=order.max_tokens,
            watch=order.watch,
            post=link.post,
            settled=self._settled,
        )
        frame = order.frame()
        link.submit(stream, frame)
        self._in_flight += 1
        self._idle.clear()
        return stream

    def end_streams(self, key_id: int, error: InferenceError) -> None:
        """End every open stream of this key with `error`."""
        for link in self._open:
            link.end_streams(key_id, error)

    async def drained(self) -> None:
        """Wait until every request is settled."""
        await self._idle.wait()

    def _choose(self, base_model: str, adapter: AdapterRef | None) -> EngineLink:
        ready = [link.engine for link in self._links.values() if not link.full]
        try:
            return self._links[choose(ready, base_model, adapter)]
        except NoEngine:
            if len(ready) < len(self._links):
                raise Overloaded(
                    "The engines are behind with reading requests.", retry_after_s=1
                ) from None
            raise

    def _settled(self, stream: Stream) -> None:
        done = stream.done
        assert done is not None
        error, known = done.fault and done.fault.error(), done.usage.prompt_tokens > 0
        if isinstance(error, Overloaded) and not known:  # the engine never took it
            self._limiter.release(stream.id)
        else:
            lost = isinstance(error, EngineLost) and not known
            self._limiter.settle(stream.id, None if lost else done.usage)
        self._unbilled[stream.id] = None
        if len(self._unbilled) > MAX_UNBILLED:
            self._unbilled.popitem(last=False)
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()


def new_id() -> str:
    """A request id: 12 hex digits of time in ms, so that ids sort by time, and 80 random bits."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"
