"""All engines of a gateway: their links, and what is passed between engines.

One Hub per gateway process, on one event loop; no locks. The websocket edge passes each connected
engine to `serve`; the HTTP edge opens a `Stream` per request with `submit` and reads it. Which
engine a request runs on is decided in `requests`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from inference.errors import EngineIdInUse, EngineLost, EngineRefused, InferenceError, Overloaded
from inference.gateway.fleet.demand import Demand, demand_of
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.fleet.engine_link import EngineLink
from inference.gateway.fleet.intake import Intake
from inference.gateway.fleet.orphans import FoundOrphan, Orphans
from inference.gateway.fleet.pins import Pins
from inference.gateway.fleet.service import FleetService
from inference.gateway.measuring.content import RequestContents
from inference.gateway.measuring.histogram import Histogram
from inference.gateway.measuring.measures import Measures
from inference.gateway.measuring.outcomes import Outcomes
from inference.gateway.measuring.start_failures import StartFailures
from inference.gateway.measuring.traffic import CountedTraffic
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.candidates import Candidates
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import MoveReason, MoveResult
from inference.gateway.requests.requests import KEPT_BYTES, Requests
from inference.gateway.requests.stream import Stream
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.gateway.routing.overflow import Overflow
from inference.gateway.routing.prefill import PrefillPolicy
from inference.gateway.structures.checks import StructureChecks
from inference.ids import new_id
from inference.interfaces.credentials import EngineIdentity, KnownCredentials
from inference.interfaces.directory import Directory
from inference.interfaces.ledger import Recorder
from inference.interfaces.limiter import Limiter
from inference.link import wire
from inference.link.engine_info import AdapterRef, ModelInfo, Suspect
from inference.link.session import HEARTBEAT_S
from inference.link.shell import Transport
from inference.link.suspects import Suspects
from inference.link.wire import Frame
from inference.pools import Pool, Revisions
from inference.splitting import Arrival, stay

log = structlog.get_logger(__name__)

RIVAL_SPEAKS_S = 2 * HEARTBEAT_S
"""How long an engine may take to send anything when another claims its id. A live engine sends
something every HEARTBEAT_S. Less than LOST_S, after which the newcomer would give up."""

NOTE_POOL_EVERY_S = 60.0
"""How often a connected kind of engine is reported to `on_model`; a kind not seen for some minutes
no longer describes its base model."""

SHOWN_TAG = 40
"""Characters of an unknown frame's tag in the log."""


class Hub:
    """All engines connected to this gateway process, and all its requests in flight."""

    def __init__(
        self,
        gateway_id: str,
        recorder: Recorder,
        limiter: Limiter,
        *,
        engines: KnownCredentials,
        dispatches: Dispatches,
        holding: Holding | None = None,
        kept_bytes: int = KEPT_BYTES,
        measures: Measures | None = None,
        overflow: Overflow | None = None,
        prefill: PrefillPolicy | None = None,
        uncounted: frozenset[str] = frozenset(),
    ) -> None:
        """`gateway_id` is the base URL under which engines reach this process. `holding` bounds the
        requests that may wait for an engine here; None: none may. At most `kept_bytes` of bodies
        are kept, so that their requests can move to other engines. `overflow` says what overflow
        engines may have; None: nothing. `prefill` says which prompts go to prefill engines.
        Requests of the `uncounted` tenants are counted neither as traffic nor among the outcomes of
        requests.
        """
        self.gateway_id = gateway_id
        self.gateways: list[str] = [gateway_id]
        self._recorder, self._limiter = recorder, limiter
        self._engines, self._dispatches = engines, dispatches
        self._pins = Pins()
        self._links: dict[str, EngineLink] = {}
        """The newest link of each engine, by id; older ones get no new work."""
        self._open: dict[EngineLink, None] = {}
        """All links. An engine may have several: more than one URL that its agent dials, such as a
        load balancer's, may lead to this gateway."""
        self._service: defaultdict[str, FleetService] = defaultdict(FleetService)
        """By base model."""
        self._suspects = Suspects()
        self.measures = measures or Measures()
        """Metrics of this gateway's requests."""
        self.outcomes = Outcomes(uncounted)
        self.stopped: set[int] = set()
        """Credentials of engines that left after draining, until a caller has noted and cleared
        them."""
        self.contents = RequestContents()
        """Bodies and answers of requests, for tenants that keep them."""
        self.structures = StructureChecks()
        """Checks answers against the schemas and tools of their requests."""
        self.overflow = overflow or Overflow()
        self.prefill = prefill or PrefillPolicy()
        self.orphans = Orphans(dispatches)
        self.start_failures = StartFailures()
        self.closed = asyncio.Event()
        """Set when no new requests are taken any more."""
        self._candidates = Candidates(self._links)
        self._requests = Requests(
            self._links,
            self._candidates,
            limiter,
            dispatches,
            holding=holding or Holding(),
            measures=self.measures,
            overflow=self.overflow,
            prefill=self.prefill,
            kept_bytes=kept_bytes,
            uncounted=uncounted,
        )
        self.intake = Intake(recorder, dispatches, self._requests.reported)
        self.unknown_frames = 0
        """Frames from engines with a tag that this version does not know."""
        self.adopted = 0
        """Answers that this gateway continued for other gateways."""
        self._noted_at: dict[str, float] = {}
        """When `_on_model` was last called for each kind of engine."""
        self._on_model: Callable[[ModelInfo], None] = lambda info: None

    @property
    def closing(self) -> bool:
        """Whether no new requests are taken any more."""
        return self._requests.closing

    @property
    def in_flight(self) -> int:
        """Requests that are not settled."""
        return self._requests.in_flight

    @property
    def held(self) -> dict[str, int]:
        """Requests that wait for an engine, by base model."""
        return self._requests.held

    @property
    def moves(self) -> dict[tuple[MoveReason, MoveResult], int]:
        """How often requests left an engine for another, by reason and outcome."""
        return self._requests.moves

    @property
    def traffic(self) -> CountedTraffic:
        """Attempts, errors and times to first token, by revision."""
        return self._requests.traffic

    @property
    def revisions(self) -> Counter[str]:
        """Number of own engines that take new work, by revision."""
        engines = [one for one in self.engines() if one.info.serves and not one.draining]
        return Counter(one.pool for one in engines)

    @property
    def has_overflow(self) -> bool:
        """Whether an overflow engine is connected."""
        return any(one.info.overflow for one in self.engines())

    @property
    def base_models(self) -> dict[str, str]:
        """The base model of each connected engine, by the engine's id."""
        return {one.engine.id: one.engine.info.name for one in self._links.values()}

    @property
    def gaps(self) -> Histogram:
        """How long readers waited while their requests moved."""
        return self._requests.gaps

    @property
    def crashed(self) -> int:
        """Errors in the handling of requests, each of which ended its own request alone."""
        return self._requests.crashed

    @property
    def credentials(self) -> set[int]:
        """The credentials of connected engines."""
        return {link.credential.id for link in self._open}

    # --- engines ---------------------------------------------------------------------------------

    def on_model(self, callback: Callable[[ModelInfo], None]) -> None:
        """Call `callback` with what an own engine serves: for each that connects, and again once a
        minute for each kind of engine (`ModelInfo.pool_digest`) of which one is connected."""
        self._on_model = callback

    async def serve(self, transport: Transport, credential: EngineIdentity) -> None:
        """Serve the connection of the engine with this credential until it ends. Errors of the
        engine end it and are not raised."""
        link = EngineLink(transport, credential, take=self._take, room_changed=self._room_changed)
        broken: BaseException | None = None
        try:
            version = await link.greeted()
            await self._admit(link)
            link.post(wire.Welcome(version, self.gateway_id, self.gateways))
            self._join(link)
            await link.converse()
        except* (InferenceError, OSError) as errors:
            broken = errors.exceptions[0]
        finally:
            reason = str(broken or "closed by the engine")
            link.close(reason)
            self._leave(link, reason)
        if broken is not None:  # last: no request may wait for a peer that perhaps does not read
            await link.goodbye(broken)

    def check_credentials(self) -> None:
        """End the links of engines whose credentials were revoked or changed."""
        for link in list(self._open):
            if not self._engines.holds(link.credential):
                link.break_off(EngineRefused("The credential of this engine was revoked."))

    async def _admit(self, link: EngineLink) -> None:
        """Let an engine that said hello join.

        Two agents may have been given the same id: the first one that is alive keeps it. An agent
        that restarted looks the same until its old link is known to be dead, so the gateway first
        listens on the old link, and closes it if it stays silent.

        Raises:
            EngineIdInUse: another engine with this id is alive.
            EngineRefused: its credential does not allow it.
        """
        engine = link.engine
        if not link.credential.may_serve(engine.info.name):
            raise EngineRefused(
                f"The credential `{link.credential.name}` does not allow its engine to "
                f"serve `{engine.info.name}`."
            )
        while (other := self._rival_of(link)) is not None:
            if await other.speaks(RIVAL_SPEAKS_S):
                raise EngineIdInUse(
                    f"Another engine with the id `{engine.id}` is connected. Give each engine an "
                    "id of its own."
                )
            log.warning("engine_replaced", engine=engine.id, old=other.engine.run, new=engine.run)
            other.break_off(EngineLost(f"engine {engine.id} was silent and has restarted"))
        if not self._engines.holds(link.credential):
            raise EngineRefused("The credential of this engine was revoked.")

    def _rival_of(self, link: EngineLink) -> EngineLink | None:
        """An open link of another agent run with the same engine id."""
        id, run = link.engine.id, link.engine.run
        for other in self._open:
            if other.engine.id == id and other.engine.run != run:
                return other
        return None

    def _join(self, link: EngineLink) -> None:
        """A link is open. An older one of the same engine may be dead, detected as such or not."""
        engine = link.engine
        link.measured = self.measures.engine(engine.info.name, engine.id)
        self._links[engine.id] = link
        self._candidates.changed()
        self._open[link] = None
        self.start_failures.started(engine.id)
        link.listener = self._service[engine.info.name].join(engine.id)
        log.info(
            "engine_joined",
            engine=engine.id,
            credential=link.credential.name,
            model=engine.info.name,
            kind=engine.info.engine,
        )
        self._pin(link)
        if known := self._suspects.all(time.time()):
            link.post(wire.SuspectList(known))
        self._note_pool(link)
        self._requests.schedule_placement()

    def _leave(self, link: EngineLink, reason: str) -> None:
        """A link ended, or never opened. Its engine stays if it has another link."""
        if link not in self._open:
            log.warning("engine_refused", engine=link.engine_id, reason=reason)
            return
        del self._open[link]
        self.orphans.left(link)
        engine = link.engine
        self._service[engine.info.name].leave(link.listener)
        if self._links.get(engine.id) is link:
            del self._links[engine.id]
            self._links |= {one.engine.id: one for one in self._open if one.engine.id == engine.id}
            stays = engine.id in self._links
            if not stays and engine.draining:
                self.stopped.add(link.credential.id)
            elif not stays:
                self.measures.engines_lost[engine.info.name] += 1
            log.warning("engine_left", engine=engine.id, reason=reason, stays=stays)
        self._candidates.changed()
        self._requests.lost(link)

    def _room_changed(self, link: EngineLink) -> None:
        """An engine is too far behind with reading, or has read a good part of that."""
        self._candidates.changed()
        if not link.full:
            self._requests.schedule_placement()

    def _take(self, link: EngineLink, frame: Frame) -> None:
        """Act on a frame from an engine."""
        match frame:
            case wire.Step(deltas=deltas):
                self._requests.step(link, deltas)
            case wire.Waits(waits=waits):
                self._requests.note_waits(link, waits)
            case wire.Done():
                self._requests.done(link, frame)
            case wire.Stats():
                self._note_stats(link, frame)
            case wire.SuspectList(suspects=suspects):
                self._note_suspects(link, suspects)
            case wire.OrphanList():
                self._note_orphans(link, frame)
            case wire.UsageReport(journal=journal, entries=entries):
                self.intake.take(link, journal, entries)
            case wire.Drain():
                self._drain(link)
            case wire.UnknownFrame(
                name=tag
            ):  # it is newer than this gateway, or has a harmless bug
                self.unknown_frames += 1
                log.info("unknown_frame", engine=link.engine.id, frame=tag[:SHOWN_TAG])
            case _:
                pass

    def _drain(self, link: EngineLink) -> None:
        link.engine.draining = True
        self._candidates.changed()

    def set_gateways(self, urls: list[str]) -> None:
        """Set the live gateways; every engine is sent a change."""
        if urls != self.gateways:
            self.gateways = urls
            for link in self._links.values():
                link.post(wire.Gateways(urls))

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Set which revisions serve, by base model."""
        self._requests.set_pools(pools)

    async def refresh_targets(self, tenant_id: int | None, directory: Directory) -> None:
        """What is known about the adapters of this tenant, or (None) of all, has changed: requests
        that wait for an engine may find one now."""
        for request in self._requests.waiting(tenant_id):
            try:
                target = await directory.resolve(request.grant, request.target.model)
                target = stay(target, request.target.version_id, Arrival(request.id))
            except InferenceError:  # its key or version is gone, which is handled elsewhere
                continue
            self._requests.update_target(request, target)

    def set_pins(
        self, pins: dict[str, list[AdapterRef]], tried: Mapping[str, Revisions] | None = None
    ) -> None:
        """Set the adapters to keep loaded, by base model; engines are sent changes. `tried` has the
        revisions on which an adapter may be loaded, by its digest; one not in there may be loaded
        on any."""
        before = self._pins.set(pins, tried or {})
        for link in self._links.values():
            if before.of(link.engine) != self._pins.of(link.engine):
                self._pin(link)

    def _pin(self, link: EngineLink) -> None:
        wanted, credential = self._pins.of(link.engine), link.credential.id
        if wanted is not None and not link.engine.info.overflow:
            link.post(
                wire.PinnedAdapters([self._dispatches.ticketed(ref, credential) for ref in wanted])
            )

    def _note_stats(self, source: EngineLink, frame: wire.Stats) -> None:
        """An engine sent its stats. The service that it gave tenants is passed on to the other
        engines of its base model."""
        source.engine.note(frame)
        self._recorder.totals(source.engine.id, frame.stats)
        if time.monotonic() - self._noted_at.get(source.engine.pool, 0.0) >= NOTE_POOL_EVERY_S:
            self._note_pool(source)
        service = self._service[source.engine.info.name]
        service.add_gains(source.listener, frame.gained, time.monotonic())
        if frame.asks is not None and (others := service.answer(source.listener, asks=frame.asks)):
            source.post(others)

    def _note_suspects(self, source: EngineLink, suspects: Sequence[Suspect]) -> None:
        """An engine reported requests with which engines fail: pass what is new to the others."""
        news = self._suspects.merge(suspects)
        for suspect in news:
            log.warning(
                "engine_failed_with",
                engine=source.engine.id,
                request_id=suspect.request_id,
                tenant=suspect.tenant,
                digest=suspect.digest,
                failures=self._suspects.failures(suspect.digest, time.time()),
            )
        for link in self._links.values() if news else ():
            if link.engine.id != source.engine.id:
                link.post(wire.SuspectList(news))

    @property
    def refused_suspects(self) -> list[Suspect]:
        """Requests that engines refuse because engines failed with them twice."""
        return self._suspects.refused(time.time())

    def _note_orphans(self, link: EngineLink, frame: wire.OrphanList) -> None:
        """An engine reported orphaned answers. If this gateway has the request of one, it had lost
        that engine and the request has moved: the orphan is cancelled."""
        others = []
        for orphan in frame.orphans:
            if self._requests.has(orphan.id):
                link.post(wire.Cancel(orphan.id, wire.MOVED, orphan.attempt))
            else:
                others.append(orphan)
        self.orphans.update(link, others, frame.withdrawn)

    def _note_pool(self, link: EngineLink) -> None:
        self._noted_at[link.engine.pool] = time.monotonic()
        if link.engine.info.serves:  # others are no revision to try adapters on, or to roll out
            self._on_model(link.engine.info)

    def unload(self, digest: str) -> None:
        """Have every engine unload this adapter as soon as no request uses it."""
        for link in self._links.values():
            link.post(wire.Unload(digest))

    def engines(self) -> list[EngineState]:
        """What is known of the connected engines."""
        return [link.engine for link in self._links.values()]

    def demand(self) -> dict[str, Demand]:
        """The demand that this gateway sees, by base model."""
        refused = self._requests.refusals.counts(time.monotonic())
        return demand_of(self.engines(), self.held, refused)

    def drain(self, engine_id: str) -> None:
        """Give the engine no new work until its process restarts; what runs is finished."""
        if link := self._links.get(engine_id):
            log.info("engine_drained", engine=engine_id)
            self._drain(link)
            link.post(wire.Drain())  # the engine tells the other gateways

    async def probe(
        self,
        base_model: str,
        adapter: AdapterRef,
        revision: str = "",
        rows: Sequence[list[int]] = (),
    ) -> dict[str, Any]:
        """Load the adapter on an engine, of this revision if one is named, and try it, also on
        these rows of tokens; returns `agent.engines.engine.EngineProbeReport` as a dict.

        Raises:
            NoEngine: no engine serves this base model and could load the adapter.
            AdapterLoadFailed: it cannot be loaded.
            EngineLost: the engine was lost meanwhile.
        """
        try:
            tiers = (frozenset([revision]),) if revision else None
            needs = Needs(base_model, adapter, tiers=tiers)
            link = self._candidates.choose(needs, now=time.monotonic())
        except Overloaded:
            self._requests.note_unmet(base_model)
            raise
        ticketed = self._dispatches.ticketed(adapter, link.credential.id)
        return await link.load(wire.Load(new_id(), ticketed, probe=True, rows=[*rows]))

    def snapshot(self) -> list[dict[str, Any]]:
        """The connected engines, for display. May be called from any thread."""
        return [link.described() for link in list(self._links.values())]

    # --- requests --------------------------------------------------------------------------------

    def submit(self, order: AdmittedRequest) -> Stream:
        """Start a request on the engine that suits it best, or hold it until one can take it.

        Raises:
            NoEngine, Overloaded: no engine can take it, and it can't be held; nothing was started.
        """
        return self._requests.submit(order)

    def adopt(self, order: AdmittedRequest, found: FoundOrphan, turn: int) -> Stream:
        """Continue an orphaned request, in this turn of it.

        Raises:
            Overloaded: this gateway is closing.
        """
        stream = self._requests.adopt(order, found, turn)
        self.adopted += 1
        return stream

    def leave(self) -> None:
        """Leave the requests that engines keep for other gateways to these: this one ends now."""
        self._requests.leave()

    def end_streams(self, key_id: int, error: InferenceError) -> None:
        """End every open stream of this key with `error`."""
        self._requests.end_of_key(key_id, error)

    def close(self) -> None:
        """Take no new requests and end held ones; what runs continues."""
        self._requests.close()
        self.closed.set()

    async def drained(self) -> None:
        """Wait until every request is settled."""
        await self._requests.drained()
