"""All requests of a gateway, from their submission until their usage is final.

Rules
    1. A request goes to an engine at once (`placing`). If none can take it, it is held for
       `Holding.seconds`; later requests that could run on the same engines come after it
       (`waiting`).
    2. A request whose engine is lost, fails with it or gives it up *moves* (`journey`): another
       engine continues where its reader is (`delivered`), one of the same revision if the reader
       was given anything. It may wait for that for as long as a held one.
    3. The reservation stays through all of that, and is settled once (`settling`).
    4. A request with a grace period is kept by its engine for other gateways (`Retention.grace_s`).
       One that is adopted here begins with an attempt of a higher turn, on the engine that has it.
    5. What happens to a request is decided by its life (`request`), a state table; this module
       passes it the events and executes its commands.
    6. A long prompt may be computed by a prefill engine first (`routing.prefill`).
    7. A request that may go to an overflow engine (`routing.overflow`) is tried there once it has
       waited long enough, or taken back from the queue of its engine.
    8. An error in the handling of one request reaches no other: whatever `_guarded` catches ends
       that request with status 500, is logged and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from inference.errors import InferenceError, NoEngine, Overloaded, Unavailable
from inference.gateway.fleet.demand import Refusals
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.fleet.engine_link import EngineLink
from inference.gateway.fleet.orphans import FoundOrphan
from inference.gateway.measuring.histogram import Histogram
from inference.gateway.measuring.measures import DURATION_S, Measures
from inference.gateway.measuring.traffic import CountedTraffic, failed
from inference.gateway.requests import placing
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.attempt import Attempt
from inference.gateway.requests.candidates import Candidates
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import MoveReason, MoveResult, reason_to_move
from inference.gateway.requests.placing import Placing
from inference.gateway.requests.request import (
    WAITING,
    Begun,
    Command,
    Extend,
    Forget,
    Moved,
    Place,
    Request,
    RequestState,
    Settle,
    Timer,
)
from inference.gateway.requests.settling import Settling
from inference.gateway.requests.stream import Event, Stream
from inference.gateway.requests.waiting import Waiting
from inference.gateway.routing.overflow import Overflow
from inference.gateway.routing.prefill import HANDED_OVER, PrefillPolicy
from inference.interfaces.directory import ResolvedTarget
from inference.interfaces.limiter import Limiter
from inference.link.accounts import LedgerEntry
from inference.link.session import AttemptKey
from inference.link.wire import GONE, LEFT, Adopt, Cancel, Delta, Done, Submit, Wait
from inference.pools import Pool

log = structlog.get_logger(__name__)

KEPT_BYTES = 256 << 20
TRIED_AT_ONCE = 32
"""Waiting requests that one turn of the event loop tries to place; each takes about 30 us."""


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
        overflow: Overflow,
        prefill: PrefillPolicy,
        kept_bytes: int = KEPT_BYTES,
        uncounted: frozenset[str] = frozenset(),
    ) -> None:
        """`links` has the links that may get work, by engine; `candidates` chooses among them. At
        most `kept_bytes` of bodies are kept, so that their requests can move. Requests of the
        `uncounted` tenants are not counted as traffic."""
        self.closing = False
        self.moves: Counter[tuple[MoveReason, MoveResult]] = Counter()
        """How often requests left an engine for another, by reason and outcome."""
        self.gaps = Histogram(DURATION_S)
        self.refusals = Refusals()
        self.traffic = CountedTraffic()
        self.crashed = 0
        """Errors in the handling of requests (rule 8)."""
        self._links, self._limiter, self._holding = links, limiter, holding
        self._measures, self._uncounted = measures, uncounted
        self._streams: dict[str, Stream] = {}
        self._running: defaultdict[EngineLink, dict[AttemptKey, Stream]] = defaultdict(dict)
        """The attempts that run on each link. A request has one at a time: `Stream.attempt`."""
        self._candidates, self._overflow, self._prefill = candidates, overflow, prefill
        self._placing = Placing(candidates, dispatches, overflow, prefill, kept_bytes=kept_bytes)
        self._waiting = Waiting(holding)
        self._round_scheduled = False
        self._settling = Settling(limiter, measures)
        self._idle = asyncio.Event()
        self._idle.set()
        self._commands: dict[type[Command], Callable[[Stream, Any], None]] = {
            Delta: self._deliver,
            Cancel: self._cancel,
            Wait: self._tell_wait,
            Begun: self._begin,
            Place: self._place,
            Timer: self._set_timer,
            Moved: self._count_move,
            Extend: self._extend,
            Forget: self._forget,
            Settle: self._settle,
        }

    @property
    def in_flight(self) -> int:
        """Requests that are not settled."""
        return len(self._streams)

    @property
    def held(self) -> dict[str, int]:
        """Requests that wait for an engine, by base model."""
        return self._waiting.by_base_model

    # --- edges -----------------------------------------------------------------------------------

    def submit(self, order: AdmittedRequest) -> Stream:
        """Start a request on the engine that suits it best, or hold it until one can take it.

        Raises:
            NoEngine, Overloaded: no engine can take it, and it can't be held; nothing was started.
            InvalidRequest: its base model does not support this operation.
        """
        self._refuse_if_closing()
        stream = self._stream(order, time.monotonic())
        refusal: Overloaded | None = None
        if not (self._waiting and self._waiting.blocks(self._placing.kind(order))):
            try:
                self._start(stream, *self._placing.next_attempt(stream.request, time.monotonic()))
                return stream
            except Overloaded as error:
                refusal = error
        self._hold(stream, order, refusal)
        return stream

    def adopt(self, order: AdmittedRequest, found: FoundOrphan, turn: int) -> Stream:
        """Continue an orphaned request, in this turn of it; the order is made as for a request
        submitted here.

        Raises:
            Overloaded: this gateway is closing.
        """
        self._refuse_if_closing()
        now = time.monotonic()
        stream = self._stream(order, now - max(0.0, time.time() - order.started_at))
        stream.request.may_have_cost = True
        self._start(stream, *self._placing.adoption(stream.request, found, turn, now))
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
            if stream.request.grant.key_id == key_id:
                stream.end(error)

    def close(self) -> None:
        """Take no new requests and end held ones; requests that run or move continue."""
        self.closing = True
        error = Overloaded("This gateway is shutting down.", retry_after_s=1)
        for request in self._waiting.held():
            self._happened(self._streams[request.id], request.reject, error)

    async def drained(self) -> None:
        """Wait until every request is settled."""
        await self._idle.wait()

    # --- what changes around them ----------------------------------------------------------------

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Set which revisions serve, by base model; for a base model that is not here, all do."""
        self._placing.pools = pools
        self._needs_changed(self._streams.values())

    def waiting(self, tenant_id: int | None) -> list[Request]:
        """Requests for adapters that wait for an engine, of this tenant or (None) of all."""
        return [
            stream.request
            for stream in self._streams.values()
            if stream.request.state in WAITING
            and stream.request.target.adapter is not None
            and tenant_id in (None, stream.request.grant.tenant_id)
        ]

    def update_target(self, request: Request, target: ResolvedTarget) -> None:
        """Update on which revisions the request's adapter was tried. Its version stays the same."""
        request.update_target(target)
        if (stream := self._streams.get(request.id)) is not None:
            self._needs_changed([stream])

    def schedule_placement(self) -> None:
        """An engine joined, or may take more than before: soon try to place waiting requests."""
        if self._waiting:
            self._waiting.begin_round()
            self._schedule_round()

    def reported(self, entry: LedgerEntry) -> None:
        """An engine's journal reports how this attempt ended."""
        self._settling.reported(entry, self._streams)

    def note_unmet(self, base_model: str) -> None:
        """A request was refused. It counts as unmet only if no connected engine of its base model
        takes requests: if one does, it lacks what the request needs, and so might one more."""
        if not any(
            link.engine.info.name == base_model
            and link.engine.info.serves
            and not (link.engine.draining or link.full)
            for link in self._links.values()
        ):
            self.refusals.note(base_model, time.monotonic())

    # --- what engines send -----------------------------------------------------------------------

    def step(self, link: EngineLink, deltas: Sequence[Delta]) -> None:
        """The engine sent output of several attempts."""
        now, running = time.monotonic(), self._running[link]
        inter_token = link.measured.inter_token_seconds
        # Most streams have one token now and had one in the last frame: these are added together.
        since, alike = link.stepped_at, 0
        for delta in deltas:
            stream = running[delta.id, delta.attempt]
            attempt = stream.attempt
            assert attempt is not None
            if not attempt.has_begun:
                pass
            elif delta.tokens == 1 and attempt.last_output_at == since:
                alike += 1
            elif delta.tokens:
                inter_token.add((now - attempt.last_output_at) / delta.tokens, delta.tokens)
            attempt.last_output_at = now
            self._guarded(stream, self._take_output, stream, delta, now)
        if alike:
            inter_token.add(now - since, alike)
        link.stepped_at = now

    def _take_output(self, stream: Stream, delta: Delta, now: float) -> None:
        """As `_happened` for the event `output`, for which it would take twice as long: this is
        called once per token, and changes no state."""
        for command in stream.request.output(delta, now):
            if type(command) is Delta:
                self._deliver(stream, command)
            else:
                self._guarded(stream, self._execute, stream, command)

    def note_waits(self, link: EngineLink, waits: Iterable[Wait]) -> None:
        """The engine reported what requests wait for."""
        for wait in waits:
            stream = self._running[link].get((wait.id, wait.attempt))
            if stream is not None and stream.attempt and not stream.attempt.has_begun:
                self._guarded(stream, self._execute, stream, wait)

    def done(self, link: EngineLink, done: Done) -> None:
        """The engine sent `done`."""
        key = done.id, done.attempt
        stream = self._running[link].pop(key)
        self._overflow.ended(key)
        link.engine.ended(key)
        self._guarded(stream, self._stop, stream, done)
        self._note_room(link)

    def lost(self, link: EngineLink) -> None:
        """The link ended: its attempts are lost."""
        for key, stream in self._running.pop(link, {}).items():
            self._overflow.ended(key)
            self._guarded(stream, self._stop, stream, None)

    def _stop(self, stream: Stream, done: Done | None) -> None:
        request, attempt = stream.request, stream.attempt
        assert attempt is not None
        attempt.link.unbegun -= not attempt.has_begun
        done = None if done is None else attempt.clamped(done)
        why = MoveReason.LOST if done is None else reason_to_move(attempt, done)
        wanted, moved_before = request.is_wanted, request.journey is not None
        if attempt.prefills:
            self._note_prefill(attempt, why, done)
        if done is not None and done.finish_reason in (GONE, LEFT):
            attempt.end_span(done.finish_reason)
        elif done is None:
            attempt.end_span(MoveReason.LOST)
            self._count(stream, failed=wanted)
        elif why is MoveReason.PREFILLED:
            attempt.end_span("")
        else:
            attempt.end_span(why or (done.fault.code if done.fault else ""))
            if why is None or why is MoveReason.FAILED:
                self._count(stream, failed=why is MoveReason.FAILED or failed(done))
        may_leave = why is not None and request.may_leave(attempt, why)
        if why is not None and wanted and moved_before and not may_leave:
            log.warning(
                "request_moved_no_more",
                request_id=request.id,
                attempt=attempt.number,
                why=why.value,
                engine=attempt.engine.id,
                moves=request.journey and request.journey.moves,
            )
        self._happened(stream, request.stop, why, done)

    def _note_prefill(self, attempt: Attempt, why: MoveReason | None, done: Done | None) -> None:
        if why is MoveReason.PREFILLED and done is not None:
            why_not = HANDED_OVER if done.handover else "not_kept"
        else:
            why_not = "ended" if why is None else why.value
        self._prefill.ended(attempt.engine, why_not)

    def _count(self, stream: Stream, *, failed: bool) -> None:
        if stream.attempt and stream.request.grant.tenant not in self._uncounted:
            self.traffic.ended(stream.attempt.engine.pool, failed=failed)

    def _note_room(self, link: EngineLink) -> None:
        """The engine has one unbegun request less. Waiting requests are placed only when the count
        passes one mark, not each time, because that goes through all that wait."""
        if link.unbegun == placing.TAKEN_UP // 2:
            self.schedule_placement()

    # --- events and commands ---------------------------------------------------------------------

    def _happened(self, stream: Stream, event: Event, *args: Any) -> None:
        """Pass an event to a request and execute its commands."""
        before = stream.request.state
        commands = self._guarded(stream, event, *args, time.monotonic())
        if stream.request.state is not before:
            self._entered(stream, before)
        for command in commands or ():
            self._guarded(stream, self._execute, stream, command)

    def _guarded(self, stream: Stream, step: Callable[..., Any], *args: Any) -> Any:
        """Call `step(*args)`, which handles this request alone: the barrier of rule 8."""
        try:
            return step(*args)
        except Exception:
            request = stream.request
            log.exception("request_crashed", request_id=request.id, state=request.state.name)
            self.crashed += 1
            self._happened(stream, request.crash)
            return None

    def _entered(self, stream: Stream, before: RequestState) -> None:
        """Keep what waits in step with the request's new state."""
        if stream.request.state not in WAITING:
            if self._waiting:
                self._stop_waiting(stream)
        elif before is RequestState.RUNNING:
            self._waiting.move(stream.request)

    def _stop_waiting(self, stream: Stream) -> None:
        stream.stop_timer()
        if self._waiting.remove(stream.request):
            self._guarded(stream, self._note_held, stream.request)

    def _execute(self, stream: Stream, command: Command) -> None:
        self._commands[type(command)](stream, command)

    def _deliver(self, stream: Stream, delta: Delta) -> None:
        if stream.capture is not None:
            stream.capture.add(delta)
        if stream.structure is not None:
            stream.structure.add(delta)
        if stream.request.is_wanted:
            stream.push(delta)

    def _cancel(self, stream: Stream, cancel: Cancel) -> None:
        assert stream.attempt is not None
        stream.attempt.link.post(cancel)

    def _tell_wait(self, stream: Stream, wait: Wait) -> None:
        if stream.watch is not None:
            stream.watch(wait)

    def _count_move(self, stream: Stream, moved: Moved) -> None:
        self.moves[moved] += 1

    def _forget(self, stream: Stream, forget: Forget) -> None:
        self._placing.forget(stream.request.grant.tenant, forget.bytes)

    def _begin(self, stream: Stream, begun: Begun) -> None:
        request, attempt = stream.request, stream.attempt
        assert attempt is not None
        attempt.engine.began((request.id, attempt.number))
        attempt.link.unbegun -= 1
        if request.grant.tenant not in self._uncounted:
            self.traffic.began(attempt.engine.pool, time.monotonic() - attempt.sent_at)
        if begun.gap_s is not None and request.journey is not None:
            self.gaps.add(begun.gap_s)
            log.info(
                "request_moved",
                request_id=request.id,
                attempt=attempt.number,
                why=request.journey.why.value,
                engine=attempt.engine.id,
                gap_s=round(begun.gap_s, 3),
            )
        self._note_room(attempt.link)

    def _extend(self, stream: Stream, extend: Extend) -> None:
        extending = self._limiter.extend(stream.request.reservation, extend.tokens)
        stream.extending = asyncio.create_task(extending)
        stream.extending.add_done_callback(
            lambda task: self._guarded(stream, self._extended, stream, task)
        )

    def _extended(self, stream: Stream, extending: asyncio.Task[None]) -> None:
        reservation = stream.request.reservation
        refusal: InferenceError | None = None
        try:
            if not extending.cancelled():
                extending.result()
        except Unavailable:  # the counters can't refuse; what it generates is counted at its end
            reservation.output_tokens = (reservation.output_tokens or 0) + Extend().tokens
        except InferenceError as error:
            refusal = error
        self._happened(stream, stream.request.extend, refusal)

    def _settle(self, stream: Stream, settle: Settle) -> None:
        del self._streams[stream.id]
        stream.stop_timer()
        if stream.overflow_timer is not None:
            stream.overflow_timer.cancel()
        if not self._streams:
            self._idle.set()
        stream.wake()
        self._guarded(stream, self._settle_limits, stream, settle.done)
        callbacks, stream.when_settled = stream.when_settled, []
        for callback in callbacks:
            self._guarded(stream, callback)

    def _settle_limits(self, stream: Stream, done: Done) -> None:
        request = stream.request
        error = done.fault and done.fault.error()
        refused = isinstance(error, Overloaded)
        if isinstance(error, NoEngine):
            self.note_unmet(request.target.base_model)
        elif refused and not request.is_estimated:  # the engine is full
            self.refusals.note(request.target.base_model, time.monotonic())
        measured = None if stream.attempt is None else stream.attempt.link.measured
        self._settling.settled(request, done, measured, refused=refused)

    # --- finding engines -------------------------------------------------------------------------

    def _stream(self, order: AdmittedRequest, began: float) -> Stream:
        request = Request(order, began=began, holding_s=self._holding.seconds)
        return Stream(request, self._happened, order.watch)

    def _add(self, stream: Stream) -> None:
        self._streams[stream.id] = stream
        self._idle.clear()
        request = stream.request
        if request.overflows and self._candidates.have_overflow(request.target.base_model):
            stream.overflow_timer = asyncio.get_running_loop().call_later(
                self._overflow.wait_s, self._guarded, stream, self._overflow_if_waiting, stream
            )

    def _overflow_if_waiting(self, stream: Stream) -> None:
        """The request has waited long enough: an overflow engine may have it."""
        request = stream.request
        if request.state in (RequestState.HELD, RequestState.MOVING):
            self._place(stream, Place(paced=True))
        elif (attempt := request.attempt) is None or attempt.engine.info.overflow:
            return
        elif self._placing.overflow_for(request, time.monotonic()) is not None:
            self._happened(stream, request.recall)

    def _start(self, stream: Stream, attempt: Attempt, frame: Submit | Adopt) -> None:
        """Begin this attempt: its frame goes to its engine."""
        if stream.request.state is RequestState.NEW:
            self._add(stream)
        self._happened(stream, stream.request.place, attempt)
        if stream.request.attempt is attempt:
            stream.attempt = attempt
            self._guarded(stream, self._send, stream, attempt.link, frame)

    def _send(self, stream: Stream, link: EngineLink, frame: Submit | Adopt) -> None:
        link.send(frame)
        key = frame.id, frame.attempt
        self._running[link][key] = stream
        if link.engine.info.overflow and isinstance(frame, Submit):
            self._overflow.sent(key, link.engine.info.name, frame.workload)

    def _hold(self, stream: Stream, order: AdmittedRequest, refusal: Overloaded | None) -> None:
        """Let a new request wait for an engine: because of this refusal, or without one behind
        earlier requests. If no more can be held, one without a refusal is tried on an engine.

        Raises:
            NoEngine, Overloaded: it can't wait either.
        """
        request = stream.request
        if refusal is not None and not self._holding.seconds:
            self.note_unmet(request.target.base_model)
            raise refusal
        try:
            self._waiting.hold(request, self._placing.kind(order))
        except NoEngine as full:
            if refusal is None:
                with suppress(Overloaded):
                    attempt = self._placing.next_attempt(request, time.monotonic())
                    return self._start(stream, *attempt)
            self.note_unmet(request.target.base_model)
            raise full from None
        self._add(stream)
        self._happened(stream, request.hold)

    def _place(self, stream: Stream, place: Place) -> None:
        """Find an engine for a waiting request."""
        request, now = stream.request, time.monotonic()
        try:
            attempt, frame = self._placing.next_attempt(request, now, paced=place.paced)
        except InferenceError as refusal:
            self._happened(stream, request.refuse, refusal)
        else:
            self._start(stream, attempt, frame)

    def _set_timer(self, stream: Stream, timer: Timer) -> None:
        stream.stop_timer()
        loop = asyncio.get_running_loop()
        stream.timer = loop.call_later(timer.seconds, self._time_out, stream)

    def _time_out(self, stream: Stream) -> None:
        alive = {link.engine.run for link in self._links.values()}
        self._happened(stream, stream.request.time_out, alive)

    def _note_held(self, request: Request) -> None:
        """The request is no longer held: record for how long it was."""
        self._measures.held(request.target.base_model, request.held_s)
        if request.trace is not None:
            now = time.monotonic()
            request.trace.note("hold", now - request.held_s, now)

    def _needs_changed(self, streams: Iterable[Stream]) -> None:
        """What these requests need may have changed: those that wait may find an engine now."""
        for stream in streams:
            request = stream.request
            if request.state is RequestState.HELD and request.order is not None:
                self._waiting.set_kind(request, self._placing.kind(request.order))
        self.schedule_placement()

    def _schedule_round(self) -> None:
        if not self._round_scheduled:
            self._round_scheduled = True
            asyncio.get_running_loop().call_soon(self._try_waiting)

    def _try_waiting(self) -> None:
        """Place waiting requests, as far as engines take them."""
        for request in self._waiting.some(TRIED_AT_ONCE):
            if (stream := self._streams.get(request.id)) is not None:
                self._guarded(stream, self._try, stream)
        self._round_scheduled = False
        if self._waiting.is_round_open:
            self._schedule_round()

    def _try(self, stream: Stream) -> None:
        """Place a request, unless it waits no longer or needs what another needed in vain."""
        request = stream.request
        if request.state is RequestState.HELD:
            needed = self._waiting.kind_of(request)
            if request.overflows and self._overflow.is_due(request.elapsed_s(time.monotonic())):
                needed = needed, True
        elif request.state is RequestState.MOVING:
            needed = self._placing.needed(request)
        else:
            return
        if not self._waiting.was_in_vain(needed):
            self._place(stream, Place(paced=True))
            if request.state in WAITING:
                self._waiting.note_in_vain(needed)

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise Overloaded("This gateway is shutting down.", retry_after_s=1)
