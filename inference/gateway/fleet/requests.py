"""Which engine each request of a gateway runs on, or that it waits for one. On one event loop.

Rules
    1. A request goes to an engine at once. Where none can take it, it is held (`held`) for
       `Holding.seconds`; who comes meanwhile and could run on the same engines comes after it.
    2. What is held is taken up as engines can: each has TAKEN_UP of this gateway's requests without
       a first token, at most. That slows nobody down: an engine that has more fills its own queue.
       When a request's time is over, or no more are held, any engine will do that takes it.
    3. A request whose engine is lost, fails with it or gives it up *moves* (`journey`): another
       engine goes on where its reader is (`delivered`), one of the same revision if the reader was
       given anything. It goes before everybody who is held, and may wait as long for its engine.
    4. The reservation stays through all of that, and is settled once, by the last attempt. What
       engines' journals report of lower ones never ends it.

    5. A request with a grace is kept by its engine for other gateways (`Submit.grace_s`). One that
       is adopted here begins with an attempt of a higher turn, on the engine that has it.

What can't move ends with its engine: what an engine of a protocol before MOVES_SINCE has begun to
answer, or one that does not say of which revision it is; what was ended anyway; and requests whose
bodies are beyond their tenant's share of `kept_bytes`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import structlog

from inference.errors import (
    GenerationTimeout,
    InferenceError,
    NoEngine,
    Overloaded,
    RequestQuarantined,
    Unavailable,
)
from inference.gateway.fleet.demand import Refusals
from inference.gateway.fleet.dispatches import Bounds, Dispatches
from inference.gateway.fleet.engine_link import EngineLink
from inference.gateway.fleet.held import Held, Holding, Request
from inference.gateway.fleet.journey import (
    MAX_MOVES,
    RETURNS_S,
    Journey,
    Outcome,
    Why,
    last_word,
    lost,
    may_leave,
    why_elsewhere,
)
from inference.gateway.fleet.leg import Leg
from inference.gateway.fleet.order import Order
from inference.gateway.fleet.orphans import Found
from inference.gateway.fleet.shares import Shares
from inference.gateway.fleet.stream import Stream
from inference.gateway.measuring.histogram import Histogram
from inference.gateway.measuring.measures import DURATION_S, Ended, Measures
from inference.gateway.measuring.traffic import Counted, failed
from inference.gateway.routing.choice import choose, tier_of
from inference.gateway.routing.engine_state import Needs
from inference.gateway.routing.pools import Pool
from inference.gateway.routing.popularity import Popularity
from inference.grants import Limiter, Target
from inference.link.wire import (
    ADOPTS_SINCE,
    GONE,
    LEFT,
    MOVES_SINCE,
    Adopt,
    Done,
    LedgerEntry,
    Orphan,
    Resume,
    Wait,
    first_attempt,
)

log = structlog.get_logger(__name__)

TAKEN_UP = 64
"""Several gateways may do so at a time, and an agent's queue holds 1,024."""
KEPT_BYTES = 256 << 20
MAX_UNBILLED = 100_000
"""Beyond it the oldest is settled twice, which changes nothing."""


class Requests:
    """All requests of this gateway that are not settled, wherever they are."""

    def __init__(
        self,
        links: Mapping[str, EngineLink],
        limiter: Limiter,
        dispatches: Dispatches,
        *,
        holding: Holding,
        measures: Measures,
        kept_bytes: int = KEPT_BYTES,
        uncounted: frozenset[str] = frozenset(),
    ) -> None:
        """`links` are those that may get work, by engine; `kept_bytes` of bodies are kept at most,
        so that their requests can move. What these tenants ask is not counted as traffic."""
        self.closing = False
        self.moves: Counter[tuple[Why, Outcome]] = Counter()
        self.gaps = Histogram(DURATION_S)
        self.refusals = Refusals()
        self.traffic = Counted()
        self.pools: Mapping[str, Pool] = {}
        """By base model; what is not here may run on any engine."""
        self._links, self._limiter, self._dispatches = links, limiter, dispatches
        self._uncounted = uncounted
        self._holding, self._held = holding, Held(holding)
        self._measures = measures
        self._streams: dict[str, Stream] = {}
        self._moving: dict[str, Stream] = {}
        """Those that wait to go on, in the order in which they lost their engines."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Of those that wait."""
        self._looking = False
        self._kept = Shares(kept_bytes)
        """Bytes of bodies, by tenant."""
        self._popularity = Popularity()
        self._unbilled: OrderedDict[str, int] = OrderedDict()
        """Requests whose limits are settled here, until the engine's journal reports the attempt
        that they ended with, or a higher one."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests that are not settled."""
        return len(self._streams)

    @property
    def held(self) -> dict[str, int]:
        """How many wait for an engine, by base model."""
        moving = Counter(stream.target.base_model for stream in self._moving.values())
        return dict(moving + Counter(self._held.by_base_model))

    def submit(self, order: Order) -> Stream:
        """Start a request on the engine that suits it best, or hold it until one can take it.

        Raises:
            NoEngine, Overloaded: none can take it, and it can't be held; nothing was started.
        """
        if self.closing:
            raise Overloaded("This gateway is shutting down.", retry_after_s=1)
        stream = Stream(order, self._limiter, self)
        waits = bool(self._held) and self._held.waits(_kind_of(self._needs(order)))
        refusal = None if waits else self._try(stream)
        if waits or refusal is not None:
            self._hold(stream, order, refusal)
        self._streams[stream.id] = stream
        self._idle.clear()
        return stream

    def adopt(self, order: Order, found: Found, turn: int) -> Stream:
        """Go on with a request that an engine has and no gateway, in this turn of it; the order is
        as its own one's. It can't move without a body.

        Raises:
            Overloaded: this gateway ends.
        """
        if self.closing:
            raise Overloaded("This gateway is shutting down.", retry_after_s=1)
        link, orphan = found.link, found.orphan
        elapsed_s = max(0.0, time.time() - order.started_at)
        stream = Stream(order, self._limiter, self, elapsed_s=elapsed_s)
        stream.attempt = first_attempt(turn)
        stream.may_have_cost = True
        self._keep(stream, order)
        dispatch = orphan.account.dispatch
        assert dispatch is not None, "what is not signed is not known as an orphan"
        most = Bounds(dispatch.prompt_tokens, dispatch.output_tokens)
        stream.delivered.begin(most, exact=self._is_exact(stream, order, link))
        stream.leg = Leg(self, stream, link, stream.attempt, most, keeps=True)
        stream.given_to(link)
        self._trace(stream, stream.leg)
        link.adopt(stream.leg, self._adoption(stream, order, link, orphan, most))
        if not order.body or stream.kept < len(order.body):
            stream.stay()
        self._streams[stream.id] = stream
        self._idle.clear()
        return stream

    def has(self, id: str) -> bool:
        """Whether this request is here and not settled."""
        return id in self._streams

    def leave(self) -> None:
        """Leave to engines what they keep for other gateways."""
        error = Unavailable("This gateway is shutting down: repeat the request.", retry_after_s=1)
        for stream in list(self._streams.values()):
            stream.leave(error)

    def end_of_key(self, key_id: int, error: InferenceError) -> None:
        """End every open stream of this key with `error`."""
        for stream in list(self._streams.values()):
            if stream.grant.key_id == key_id:
                stream.end(error)

    def close(self) -> None:
        """Take nothing new, and hold nothing any longer; what runs or moves goes on."""
        self.closing = True
        for stream in list(self._streams.values()):
            if self._held.withdraw(stream.id):
                self._end(stream, Overloaded("This gateway is shutting down.", retry_after_s=1))

    async def drained(self) -> None:
        """Wait until every request is settled."""
        await self._idle.wait()

    def reported(self, entry: LedgerEntry) -> None:
        """An engine's journal has how this attempt ended.

        Those that another gateway had taken are settled in the limits here: it may have died. Those
        of this one are settled by their stream, whatever lower attempts report.
        """
        if entry.id not in self._streams and entry.id not in self._unbilled:
            self._limiter.settle(entry.id, entry.usage)
        elif entry.attempt >= self._unbilled.get(entry.id, sys.maxsize):
            del self._unbilled[entry.id]

    def note_unmet(self, base_model: str) -> None:
        """A request was refused; it counts as unmet where one more engine would have taken it,
        which what no engine there can do says nothing of."""
        if not any(
            link.engine.info.name == base_model and not link.engine.draining and not link.full
            for link in self._links.values()
        ):
            self.refusals.note(base_model, time.monotonic())

    def waiting(self, tenant_id: int | None) -> list[Stream]:
        """What wants an engine for an adapter, of this tenant or of all."""
        return [
            stream
            for stream in self._streams.values()
            if stream.leg is None
            and stream.target.adapter is not None
            and tenant_id in (None, stream.grant.tenant_id)
        ]

    def renew(self, stream: Stream, target: Target) -> None:
        """Where its adapter was tried is known anew. Which version it is stays as it was."""
        if (order := stream.order) is None or target.version_id != order.target.version_id:
            return
        now = replace(order.target, tried=target.tried, ready=target.ready)
        stream.order = replace(order, target=now)
        self.look_soon()

    def look_soon(self) -> None:
        """An engine came, or may take more than before: see who waits for one."""
        if (self._moving or self._held) and not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    # --- what links ask (leg.LegOwner) -----------------------------------------------------------

    def begun(self, leg: Leg) -> None:
        """Its engine sends something of it, for the first time."""
        leg.stream.may_have_cost = True
        if leg.stream.grant.tenant not in self._uncounted:
            self.traffic.began(leg.link.engine.pool, time.monotonic() - leg.sent_at)
        journey = leg.stream.journey
        if journey is not None and journey.since is not None:
            gap_s = journey.goes_on(time.monotonic())
            self.gaps.add(gap_s)
            log.info(
                "request_moved",
                request_id=leg.stream.id,
                attempt=leg.attempt,
                why=journey.why.value,
                engine=leg.link.engine.id,
                gap_s=round(gap_s, 3),
            )
        self._note_room(leg)

    def ended(self, leg: Leg, done: Done) -> None:
        """Its engine said the last word on it, or that another one should."""
        stream, done = leg.stream, leg.believed(done)
        if done.finish_reason in (GONE, LEFT):
            leg.end_span(done.finish_reason)
            return stream.settle(done)
        why = why_elsewhere(leg, done)
        leg.end_span(why or (done.fault.code if done.fault else ""))
        if why is None or why is Why.FAILED:
            self._count(leg, failed=why is Why.FAILED or failed(done))
        if why is not None and may_leave(leg, why):
            self._move(leg, why, done)
        else:
            self._note_stay(leg, why)
            stream.settle(last_word(leg, done))
        self._note_room(leg)

    def lost(self, leg: Leg) -> None:
        """Its engine's link ended; the last word is what was seen of it."""
        leg.stream.may_have_cost = True
        leg.end_span(Why.LOST)
        self._count(leg, failed=leg.stream.is_wanted)
        if may_leave(leg, Why.LOST):
            self._move(leg, Why.LOST)
        else:
            self._note_stay(leg, Why.LOST)
            leg.stream.settle_as_seen(None, lost(leg))

    def _count(self, leg: Leg, *, failed: bool) -> None:
        if leg.stream.grant.tenant not in self._uncounted:
            self.traffic.ended(leg.link.engine.pool, failed=failed)

    # --- what streams ask (stream.Carrier) -------------------------------------------------------

    def stopped(self, stream: Stream) -> None:
        """It is to end while no engine has it."""
        self._held.withdraw(stream.id)
        if self._moving.pop(stream.id, None) is not None:
            self._note(stream, Outcome.STOPPED)
        self._end(stream, None)

    def forgot(self, stream: Stream) -> None:
        """Its body is not kept any longer."""
        self._kept.give_back(stream.grant.tenant, stream.kept)

    def settled(self, stream: Stream) -> None:
        """Its figures are final."""
        done = stream.done
        assert done is not None
        error = done.fault and done.fault.error()
        refused = isinstance(error, Overloaded)
        if isinstance(error, NoEngine):
            self.note_unmet(stream.target.base_model)
        elif refused and not stream.ended_as_seen:  # the engine is full
            self.refusals.note(stream.target.base_model, time.monotonic())
        self._settle_limits(stream, done, refused=refused)
        del self._streams[stream.id]
        if stream.attempt:
            if not stream.elsewhere and done.finish_reason != GONE:
                self._measure(stream, done)
            self._unbilled[stream.id] = stream.attempt
        if len(self._unbilled) > MAX_UNBILLED:
            self._unbilled.popitem(last=False)
        if not self._streams:
            self._idle.set()

    def _settle_limits(self, stream: Stream, done: Done, *, refused: bool) -> None:
        if stream.elsewhere:
            self._limiter.hand_over(stream.id)
        elif done.finish_reason == GONE:
            self._limiter.settle(stream.id, None)
        elif done.usage.prompt_tokens or not (stream.ended_as_seen or refused):
            self._limiter.settle(stream.id, done.usage)
        elif stream.may_have_cost:
            self._limiter.settle(stream.id, None)
        else:  # no engine ever took it
            self._limiter.release(stream.id)

    # --- engines ---------------------------------------------------------------------------------

    def _try(self, stream: Stream, *, paced: bool = False) -> InferenceError | None:
        """Start its next attempt; why that can't be now. With `paced`, only on an engine that has
        begun most of what it has: rule 2."""
        order = stream.order
        assert order is not None, "it waits, so it can go to an engine"
        left_s = order.timeout_s - stream.elapsed_s
        if left_s <= 0:
            return GenerationTimeout()
        resume = stream.delivered.resume(stream.ttft_s, stream.elapsed_s)
        version = 1 if not stream.attempt else 2 if resume is None else MOVES_SINCE
        journey = stream.journey

        def may_take(link: EngineLink) -> bool:
            if paced and link.unbegun >= TAKEN_UP:
                return False
            if journey is None:
                return True
            alike = resume is None or link.engine.pool == journey.pool
            return alike and link not in journey.avoided

        try:
            any_may = journey is None and not paced
            # What is resumed goes on where it was, whatever became of that revision since.
            needs = self._needs(order, version) if resume is None else order.needs(version)
            needs = self._popularity.weighed(needs)
            link = choose_link(self._links, needs, None if any_may else may_take)
        except Overloaded as refusal:
            return refusal
        self._start(stream, order, link, left_s, resume)
        self._popularity.note(needs)
        return None

    def _needs(self, order: Order, version: int = 1) -> Needs:
        return order.needs(version, self.pools.get(order.target.base_model))

    def _start(
        self, stream: Stream, order: Order, link: EngineLink, left_s: float, resume: Resume | None
    ) -> None:
        self._keep(stream, order)
        journey, exact = stream.journey, self._is_exact(stream, order, link)
        most = order.most(link.engine.info.max_model_len)
        stream.delivered.begin(most, exact=exact)
        stream.attempt += 1
        keeps = stream.delivered.keeps
        can_keep = keeps and link.engine.version >= ADOPTS_SINCE
        stream.leg = Leg(self, stream, link, stream.attempt, most, keeps=can_keep)
        stream.given_to(link)
        frame = order.frame(
            self._dispatches,
            link.credential.id,
            most,
            attempt=stream.attempt,
            timeout_s=left_s,
            ids=exact,
            resume=resume,
            trace=self._trace(stream, stream.leg),
            keeps=keeps,
        )
        link.submit(stream.leg, frame)
        if stream.kept < len(order.body):
            stream.stay()
        if journey is not None:
            self._note(stream, Outcome.BEGUN_ANEW if resume is None else Outcome.RESUMED)

    @staticmethod
    def _trace(stream: Stream, leg: Leg) -> str:
        """Begin the span of this attempt; what names it to its engine."""
        if stream.trace is None:
            return ""
        leg.span = stream.trace.begin("attempt", time.monotonic())
        return leg.span.traceparent

    def _measure(self, stream: Stream, done: Done) -> None:
        assert stream.measured is not None
        error = done.fault is not None
        ended = Ended(
            usage=done.usage,
            reported=not stream.ended_as_seen,
            has_adapter=stream.target.adapter is not None,
            completed=not error and done.finish_reason != "cancelled",
            ttft_s=stream.ttft_s,
            total_s=stream.elapsed_s,
            trace_id="" if stream.trace is None else stream.trace.trace_id,
        )
        self._measures.ended(stream.measured, ended)

    def _keep(self, stream: Stream, order: Order) -> None:
        """Keep its body, if there is room."""
        tenant, size = stream.grant.tenant, len(order.body)
        if not stream.kept and self._kept.has_room(tenant, size):
            self._kept.take(tenant, size)
            stream.kept = size

    @staticmethod
    def _is_exact(stream: Stream, order: Order, link: EngineLink) -> bool:
        """Whether another engine may have it after this one, which so has to tell token ids."""
        engine, journey = link.engine, stream.journey
        return (
            stream.kept == len(order.body)
            and engine.version >= MOVES_SINCE
            and bool(engine.info.revision)
            and (journey is None or journey.moves < MAX_MOVES)
        )

    def _adoption(
        self, stream: Stream, order: Order, link: EngineLink, orphan: Orphan, most: Bounds
    ) -> Adopt:
        account = self._dispatches.signed(
            orphan.account,
            (orphan.id, stream.attempt),
            orphan.model,
            credential=link.credential.id,
            most=most,
        )
        watched = order.watch is not None
        return Adopt(orphan.id, stream.attempt, orphan.attempt, account, watched)

    def _note_room(self, leg: Leg) -> None:
        """Its engine has one less to begin. Not for each: those who wait are looked through."""
        if leg.link.unbegun == TAKEN_UP // 2:
            self.look_soon()

    # --- waiting ---------------------------------------------------------------------------------

    def _hold(self, stream: Stream, order: Order, refusal: InferenceError | None) -> None:
        """Let it wait for an engine; without a refusal it waits for those who came before it.

        Raises:
            NoEngine, Overloaded: it can't wait either.
        """
        base_model = order.target.base_model
        if refusal is not None and not self._holding.seconds:
            self.note_unmet(base_model)
            raise refusal
        request = Request(
            id=stream.id,
            tenant=order.grant.tenant,
            base_model=base_model,
            kind=_kind_of(self._needs(order)),
            size=len(order.body),
            tokens=order.tokens,
            weight=order.grant.weight,
            lane=order.lane,
        )
        try:
            self._held.add(request, time.monotonic())
        except NoEngine:
            if refusal is not None or self._try(stream) is not None:
                self.note_unmet(base_model)
                raise
            return
        stream.held_since = time.monotonic()
        self._wait(stream, self._holding.seconds)
        stream.waits(Wait(stream.id, "held"))
        self.look_soon()

    def _wait(self, stream: Stream, seconds: float) -> None:
        """It waits so long at most."""
        assert stream.order is not None
        seconds = max(0.0, min(seconds, stream.order.timeout_s - stream.elapsed_s))
        loop = asyncio.get_running_loop()
        self._timers[stream.id] = loop.call_later(seconds, self._waited, stream)

    def _waited(self, stream: Stream) -> None:
        """Its time is over: now or never."""
        del self._timers[stream.id]
        journey = stream.journey
        if journey is not None and journey.in_doubt:
            return self._judge(stream, journey)
        if (refusal := self._try(stream)) is None:
            self._leave(stream)
            return
        self._held.withdraw(stream.id)
        if self._moving.pop(stream.id, None) is not None:
            self._note(stream, Outcome.NO_ENGINE)
        self._end(stream, (journey and journey.error) or refusal)

    def _leave(self, stream: Stream) -> None:
        """It has an engine now."""
        if self._moving.pop(stream.id, None) is None:
            self._held.start(stream.id)
            self._note_held(stream)
        if (timer := self._timers.pop(stream.id, None)) is not None:
            timer.cancel()

    def _end(self, stream: Stream, error: InferenceError | None) -> None:
        """It ends while no engine has it."""
        if (timer := self._timers.pop(stream.id, None)) is not None:
            timer.cancel()
        self._note_held(stream)
        stream.settle_as_seen(None if error else "cancelled", error)

    def _note_held(self, stream: Stream) -> None:
        """It is not held any longer, if it was."""
        since, stream.held_since = stream.held_since, None
        if since is None:
            return
        now = time.monotonic()
        stream.held_s = now - since
        self._measures.held(stream.target.base_model, stream.held_s)
        if stream.trace is not None:
            stream.trace.note("hold", since, now)

    def _look(self) -> None:
        """Give engines what waits for them, as far as they take it."""
        self._looking = False
        aside: set[Hashable] = set()
        for stream in list(self._moving.values()):
            journey = stream.journey
            assert journey is not None and stream.order is not None
            if journey.in_doubt:
                continue
            kind = _kind_of(self._needs(stream.order))
            route = kind, journey.pool, frozenset(journey.avoided)
            if route in aside:
                continue
            if self._try(stream, paced=True) is None:
                self._leave(stream)
            else:
                aside.add(route)
        for base_model in self._held.by_base_model:
            self._take_up(base_model)

    def _take_up(self, base_model: str) -> None:
        aside: set[Hashable] = set()
        now = time.monotonic()
        while (request := self._held.first(base_model, aside, now)) is not None:
            stream = self._streams[request.id]
            if self._try(stream, paced=True) is None:
                self._leave(stream)
            else:
                aside.add(request.kind)

    # --- moving ----------------------------------------------------------------------------------

    def _move(self, leg: Leg, why: Why, done: Done | None = None) -> None:
        """Its engine does not bring it to its end: find another, or let it wait for one."""
        stream = leg.stream
        stream.leg = None
        journey = stream.journey = stream.journey or Journey()
        journey.leave(leg, why, done, time.monotonic())
        stream.waits(Wait(stream.id, "moving", 0, stream.attempt))
        self._moving[stream.id] = stream
        if journey.in_doubt:
            self._wait(stream, min(RETURNS_S, self._holding.seconds))
        elif (refusal := self._try(stream, paced=True)) is None:
            self._leave(stream)
        elif self._holding.seconds and why is not Why.REFUSED:
            self._wait(stream, self._holding.seconds)
        else:
            del self._moving[stream.id]
            if why is not Why.REFUSED:  # else it has gone nowhere
                self._note(stream, Outcome.NO_ENGINE)
            if done is None or done.fault is None:
                self._end(stream, journey.error or refusal)
            else:
                stream.settle(done)

    def _judge(self, stream: Stream, journey: Journey) -> None:
        """Of the engines that it was on, those that live have come back by now (`journey`)."""
        journey.in_doubt = False
        if journey.died_twice(link.engine.life for link in self._links.values()):
            del self._moving[stream.id]
            self._note(stream, Outcome.QUARANTINED)
            self._end(
                stream,
                RequestQuarantined(
                    "Two engines were lost while they ran this request, so no other one tries it."
                ),
            )
        elif self._try(stream, paced=True) is None:
            self._leave(stream)
        else:
            self._wait(stream, self._holding.seconds)

    def _note_stay(self, leg: Leg, why: Why | None) -> None:
        """It ends with its engine; `why` is None where that ended it well."""
        journey = leg.stream.journey
        if why is not None and leg.stream.is_wanted and journey is not None:
            log.warning(
                "request_moved_no_more",
                request_id=leg.stream.id,
                attempt=leg.attempt,
                why=why.value,
                engine=leg.link.engine.id,
                moves=journey.moves,
            )

    def _note(self, stream: Stream, outcome: Outcome) -> None:
        assert stream.journey is not None
        self.moves[stream.journey.why, outcome] += 1


def choose_link(
    links: Mapping[str, EngineLink],
    needs: Needs,
    may_take: Callable[[EngineLink], bool] | None = None,
) -> EngineLink:
    """The link of the engine that should get a request, of those that may take it.

    Raises:
        NoEngine, Overloaded: none can take it.
    """
    if needs.tiers is not None:
        tier = tier_of([link.engine for link in links.values()], needs)
        links = {id: link for id, link in links.items() if link.engine.pool in tier}
    ready = [link for link in links.values() if not link.full]
    able = ready if may_take is None else filter(may_take, ready)
    try:
        return links[choose([link.engine for link in able], needs)]
    except NoEngine:
        if len(ready) < len(links):
            raise Overloaded(
                "The engines are behind with reading requests.", retry_after_s=1
            ) from None
        raise


def _kind_of(needs: Needs) -> Hashable:
    """Requests of one kind can run on the same engines."""
    adapter = needs.adapter
    shape = None if adapter is None else (adapter.rank, adapter.modules)
    tried = None if adapter is None or needs.tiers is None else adapter.name
    return needs.base_model, needs.operation, shape, needs.tiers, tried
