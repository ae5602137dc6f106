"""All requests of a gateway, from their submission until their usage is final.

Rules
    1. A request goes to an engine at once (`placing`). If none can take it, it is held (`unplaced`)
       for `Holding.seconds`; later requests that could run on the same engines come after it.
    2. A request whose engine is lost, fails with it or gives it up *moves* (`journey`): another
       engine continues where its reader is (`delivered`), one of the same revision if the reader
       was given anything.
    3. The reservation stays through all of that, and is settled once (`settling`).
    4. A request with a grace period is kept by its engine for other gateways (`Submit.grace_s`).
       One that is adopted here begins with an attempt of a higher turn, on the engine that has it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping

import structlog
from msgspec.structs import replace

from inference.errors import InferenceError, NoEngine, Overloaded, RequestError, Unavailable
from inference.gateway.fleet.demand import Refusals
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.fleet.engine_link import EngineLink, Leg
from inference.gateway.fleet.orphans import Found
from inference.gateway.measuring.histogram import Histogram
from inference.gateway.measuring.measures import DURATION_S, Measures
from inference.gateway.measuring.traffic import Counted, failed
from inference.gateway.requests import placing
from inference.gateway.requests.candidates import Candidates
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import Why, final_done, lost, reason_to_move
from inference.gateway.requests.order import Order
from inference.gateway.requests.placing import Moves, Placing
from inference.gateway.requests.settling import Settling
from inference.gateway.requests.stream import Stream
from inference.gateway.requests.unplaced import Unplaced
from inference.interfaces.directory import Target
from inference.interfaces.limiter import Limiter
from inference.link.accounts import LedgerEntry, first_attempt
from inference.link.wire import GONE, LEFT, Done
from inference.pools import Pool

log = structlog.get_logger(__name__)

KEPT_BYTES = 256 << 20


class Requests:
    """All requests of this gateway that are not settled, wherever they are."""

    def __init__(
        self,
        links: Mapping[str, EngineLink],
        candidates: Candidates,
        limiter: Limiter,
        dispatches: Dispatches,
        *,
        holding: Holding,
        measures: Measures,
        kept_bytes: int = KEPT_BYTES,
        uncounted: frozenset[str] = frozenset(),
    ) -> None:
        """`links` has the links that may get work, by engine; `candidates` chooses among them. At
        most `kept_bytes` of bodies are kept, so that their requests can move. Requests of the
        `uncounted` tenants are not counted as traffic."""
        self.closing = False
        self.moves: Moves = Counter()
        self.gaps = Histogram(DURATION_S)
        self.refusals = Refusals()
        self.traffic = Counted()
        self._links, self._limiter = links, limiter
        self._uncounted = uncounted
        self._streams: dict[str, Stream] = {}
        self._placing = Placing(candidates, dispatches, self.moves, kept_bytes=kept_bytes)
        self._unplaced = Unplaced(
            self._placing,
            links,
            self._streams,
            holding,
            measures=measures,
            moves=self.moves,
            refused=self.note_unmet,
        )
        self._settling = Settling(limiter, measures)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests that are not settled."""
        return len(self._streams)

    @property
    def held(self) -> dict[str, int]:
        """Requests that wait for an engine, by base model."""
        return self._unplaced.by_base_model

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Set which revisions serve, by base model; for a base model that is not here, all do."""
        self._placing.pools = pools
        self._unplaced.needs_changed(self._streams.values())

    def submit(self, order: Order) -> Stream:
        """Start a request on the engine that suits it best, or hold it until one can take it.

        Raises:
            NoEngine, Overloaded: no engine can take it, and it can't be held; nothing was started.
            InvalidRequest: its base model does not support this operation.
        """
        self._refuse_if_closing()
        stream = Stream(order, self._limiter, self)
        waits = self._unplaced.waits(order)
        refusal = None if waits else self._placing.place(stream)
        if isinstance(refusal, RequestError):
            raise refusal
        if waits or refusal is not None:
            self._unplaced.hold(stream, order, refusal)
        self._add(stream)
        return stream

    def adopt(self, order: Order, found: Found, turn: int) -> Stream:
        """Continue an orphaned request, in this turn of it; the order is made as for a request
        submitted here.

        Raises:
            Overloaded: this gateway is closing.
        """
        self._refuse_if_closing()
        elapsed_s = max(0.0, time.time() - order.started_at)
        stream = Stream(order, self._limiter, self, elapsed_s=elapsed_s)
        self._placing.adopt(stream, order, found, first_attempt(turn))
        self._add(stream)
        return stream

    def has(self, id: str) -> bool:
        """Whether this request is here and not settled."""
        return id in self._streams

    def leave(self) -> None:
        """Leave the requests that engines keep for other gateways to these."""
        error = Unavailable("This gateway is shutting down: retry the request.", retry_after_s=1)
        for stream in list(self._streams.values()):
            stream.leave(error)

    def end_of_key(self, key_id: int, error: InferenceError) -> None:
        """End every open stream of this key with `error`."""
        for stream in list(self._streams.values()):
            if stream.grant.key_id == key_id:
                stream.end(error)

    def close(self) -> None:
        """Take no new requests and end held ones; requests that run or move continue."""
        self.closing = True
        self._unplaced.end_held(Overloaded("This gateway is shutting down.", retry_after_s=1))

    async def drained(self) -> None:
        """Wait until every request is settled."""
        await self._idle.wait()

    def reported(self, entry: LedgerEntry) -> None:
        """An engine's journal reports how this attempt ended."""
        self._settling.reported(entry, self._streams)

    def note_unmet(self, base_model: str) -> None:
        """A request was refused. It counts as unmet only if no connected engine of its base model
        takes requests: if one does, it lacks what the request needs, and so might one more."""
        if not any(
            link.engine.info.name == base_model and not link.engine.draining and not link.full
            for link in self._links.values()
        ):
            self.refusals.note(base_model, time.monotonic())

    def waiting(self, tenant_id: int | None) -> list[Stream]:
        """Requests for adapters that wait for an engine, of this tenant or (None) of all."""
        return [
            stream
            for stream in self._streams.values()
            if stream.leg is None
            and stream.target.adapter is not None
            and tenant_id in (None, stream.grant.tenant_id)
        ]

    def renew(self, stream: Stream, target: Target) -> None:
        """Update on which revisions the stream's adapter was tried. Its version stays the same."""
        if (order := stream.order) is None or target.version_id != order.target.version_id:
            return
        now = replace(order.target, tried=target.tried, ready=target.ready)
        stream.order = replace(order, target=now)
        self._unplaced.needs_changed([stream])

    def schedule_placement(self) -> None:
        """An engine joined, or may take more than before: soon try to place waiting requests."""
        self._unplaced.schedule_placement()

    # --- what streams ask (stream.Carrier) -------------------------------------------------------

    def begun(self, stream: Stream, leg: Leg) -> None:
        """The engine sent the first output of this attempt."""
        if stream.grant.tenant not in self._uncounted:
            self.traffic.began(leg.link.engine.pool, time.monotonic() - leg.sent_at)
        journey = stream.journey
        if journey is not None and journey.since is not None:
            gap_s = journey.resumed(time.monotonic())
            self.gaps.add(gap_s)
            log.info(
                "request_moved",
                request_id=stream.id,
                attempt=leg.attempt,
                why=journey.why.value,
                engine=leg.link.engine.id,
                gap_s=round(gap_s, 3),
            )
        self._note_room(leg)

    def ended(self, stream: Stream, leg: Leg, done: Done) -> None:
        """The engine sent `done`: the request has ended, or should move to another engine."""
        if done.finish_reason in (GONE, LEFT):
            leg.end_span(done.finish_reason)
            return stream.settle(done)
        why = reason_to_move(leg, done)
        leg.end_span(why or (done.fault.code if done.fault else ""))
        if why is None or why is Why.FAILED:
            self._count(stream, leg, failed=why is Why.FAILED or failed(done))
        if why is not None and stream.may_leave(leg, why):
            self._unplaced.move(stream, leg, why, done)
        else:
            self._note_stay(stream, leg, why)
            stream.settle(final_done(leg, done, is_wanted=stream.is_wanted))
        self._note_room(leg)

    def lost(self, stream: Stream, leg: Leg) -> None:
        """The link to the engine ended; unless the request moves, it is settled as seen here."""
        leg.end_span(Why.LOST)
        self._count(stream, leg, failed=stream.is_wanted)
        if stream.may_leave(leg, Why.LOST):
            self._unplaced.move(stream, leg, Why.LOST)
        else:
            self._note_stay(stream, leg, Why.LOST)
            stream.settle_as_seen(None, lost(leg))

    def _count(self, stream: Stream, leg: Leg, *, failed: bool) -> None:
        if stream.grant.tenant not in self._uncounted:
            self.traffic.ended(leg.link.engine.pool, failed=failed)

    def _note_room(self, leg: Leg) -> None:
        """The leg's engine has one unbegun request less. Waiting requests are placed only when the
        count passes one mark, not each time, because that goes through all that wait."""
        if leg.link.unbegun == placing.TAKEN_UP // 2:
            self.schedule_placement()

    def _note_stay(self, stream: Stream, leg: Leg, why: Why | None) -> None:
        """The request ends with this engine; `why` is None if the engine completed it."""
        journey = stream.journey
        if why is not None and stream.is_wanted and journey is not None:
            log.warning(
                "request_moved_no_more",
                request_id=stream.id,
                attempt=leg.attempt,
                why=why.value,
                engine=leg.link.engine.id,
                moves=journey.moves,
            )

    def stopped(self, stream: Stream) -> None:
        """The stream is to end while no engine has it."""
        self._unplaced.stopped(stream)

    def forgot(self, stream: Stream) -> None:
        """The stream's body is no longer kept."""
        self._placing.forget(stream)

    def settled(self, stream: Stream) -> None:
        """The stream's usage is final."""
        done = stream.done
        assert done is not None
        error = done.fault and done.fault.error()
        refused = isinstance(error, Overloaded)
        if isinstance(error, NoEngine):
            self.note_unmet(stream.target.base_model)
        elif refused and not stream.ended_as_seen:  # the engine is full
            self.refusals.note(stream.target.base_model, time.monotonic())
        self._settling.settled(stream, done, refused=refused)
        del self._streams[stream.id]
        if not self._streams:
            self._idle.set()

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise Overloaded("This gateway is shutting down.", retry_after_s=1)

    def _add(self, stream: Stream) -> None:
        self._streams[stream.id] = stream
        self._idle.clear()
