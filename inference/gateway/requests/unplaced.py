"""Requests that no engine has now: held for their first engine, or moving to another one.

Rules
    1. Held requests are dispatched in order (`held`) as engines become able to take them
       (`placing`). Once its time is over, or when no more can be held, a request goes to any engine
       that accepts it, without that pacing.
    2. Moving requests go before all held ones, in the order in which they lost their engines. They
       may wait for as long as held ones.
    3. If a request may have killed two engines, it waits until those that are alive have
       reconnected (`journey`).
    4. Placement is tried when something happens that may allow it (an engine joins, or has begun or
       read enough of what it was sent; revisions or adapters change), and only then: no engine's
       statistics do. One turn of the event loop looks at LOOKED_AT requests at most, and of
       requests that need the same only at the first, so waiting costs the same however many
       different requests wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping

from inference.errors import InferenceError, NoEngine, RequestQuarantined
from inference.gateway.fleet.engine_link import EngineLink, Leg
from inference.gateway.measuring.measures import Measures
from inference.gateway.requests.held import Held, Holding, Request
from inference.gateway.requests.journey import RETURNS_S, Journey, Outcome, Why
from inference.gateway.requests.order import Order
from inference.gateway.requests.placing import Moves, Placing
from inference.gateway.requests.stream import Stream
from inference.link.wire import Done, Wait

LOOKED_AT = 32
"""Each takes about 30 us."""


class Unplaced:
    """The requests of one gateway that have no engine. Belongs to its event loop."""

    def __init__(
        self,
        placing: Placing,
        links: Mapping[str, EngineLink],
        streams: Mapping[str, Stream],
        holding: Holding,
        *,
        measures: Measures,
        moves: Moves,
        refused: Callable[[str], None],
    ) -> None:
        """`streams` has all of the gateway's, by id; `refused` is called with the base model's name
        when a request is refused because no engine takes it."""
        self._placing, self._links, self._streams = placing, links, streams
        self._holding, self._held = holding, Held(holding)
        self._measures, self._moves, self._refused = measures, moves, refused
        self._moving: dict[str, Stream] = {}
        """In the order in which they lost their engines."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._to_place: deque[Stream] = deque()
        """Requests that are still to be looked at, in order."""
        self._aside: set[Hashable] = set()
        """What requests looked at before needed in vain."""
        self._scheduled = self._changed = False
        """Whether placement goes on soon, and whether it then has to begin again."""

    @property
    def by_base_model(self) -> dict[str, int]:
        """The requests without an engine, by base model."""
        moving = Counter(stream.target.base_model for stream in self._moving.values())
        return dict(moving + Counter(self._held.by_base_model))

    def waits(self, order: Order) -> bool:
        """Whether a request is held that could run on the same engines, so that this one has to
        wait behind it."""
        return bool(self._held) and self._held.has_kind(self._placing.kind(order))

    def hold(self, stream: Stream, order: Order, refusal: InferenceError | None) -> None:
        """Let a request wait for an engine: because of this refusal, or without one behind earlier
        requests. If no more can be held, one without a refusal is tried on an engine at once.

        Raises:
            NoEngine, Overloaded: it can't wait either.
        """
        base_model = order.target.base_model
        if refusal is not None and not self._holding.seconds:
            self._refused(base_model)
            raise refusal
        request = Request(
            id=stream.id,
            tenant=order.grant.tenant,
            base_model=base_model,
            kind=self._placing.kind(order),
            size=len(order.body),
            lane=order.lane,
        )
        try:
            self._held.add(request)
        except NoEngine:
            if refusal is not None or self._placing.place(stream) is not None:
                self._refused(base_model)
                raise
            return
        stream.held_since = time.monotonic()
        self._wait(stream, self._holding.seconds)
        stream.waits(Wait(stream.id, "held"))
        self._changed |= self._scheduled  # placement that is under way has not seen it

    def move(self, stream: Stream, leg: Leg, why: Why, done: Done | None = None) -> None:
        """The leg's engine does not complete the request: find another, or let it wait for one."""
        stream.leg = None
        journey = stream.journey = stream.journey or Journey()
        journey.leave(leg, why, done, time.monotonic())
        stream.waits(Wait(stream.id, "moving", 0, stream.attempt))
        self._moving[stream.id] = stream
        if journey.in_doubt:
            self._wait(stream, min(RETURNS_S, self._holding.seconds))
        elif (refusal := self._placing.place(stream, paced=True)) is None:
            self._leave(stream)
        elif self._holding.seconds and why is not Why.REFUSED:
            self._wait(stream, self._holding.seconds)
        else:
            del self._moving[stream.id]
            if why is not Why.REFUSED:  # a refused request has not moved
                self._note(stream, Outcome.NO_ENGINE)
            if done is None or done.fault is None:
                self._end(stream, journey.error or refusal)
            else:
                stream.settle(done)

    def schedule_placement(self) -> None:
        """An engine joined, or may take more than before: soon try to place what waits."""
        if self._moving or self._held:
            self._changed = True
            self._schedule()

    def needs_changed(self, streams: Iterable[Stream]) -> None:
        """What these requests need may have changed: those that wait may find an engine now."""
        for stream in streams:
            if stream.id in self._held and stream.order is not None:
                self._held.set_kind(stream.id, self._placing.kind(stream.order))
        self.schedule_placement()

    def stopped(self, stream: Stream) -> None:
        """The stream is to end."""
        self._give_up(stream, Outcome.STOPPED, None)

    def end_held(self, error: InferenceError) -> None:
        """End all held requests with this error; moving ones continue."""
        for stream in list(self._streams.values()):
            if self._held.remove(stream.id):
                self._end(stream, error)

    def _wait(self, stream: Stream, seconds: float) -> None:
        """Bound the stream's wait to this time, and to what is left of its timeout."""
        assert stream.order is not None
        seconds = max(0.0, min(seconds, stream.order.timeout_s - stream.elapsed_s))
        loop = asyncio.get_running_loop()
        self._timers[stream.id] = loop.call_later(seconds, self._waited, stream)

    def _waited(self, stream: Stream) -> None:
        """The stream's wait is over: place it on any engine that takes it, or end it."""
        del self._timers[stream.id]
        journey = stream.journey
        if journey is not None and journey.in_doubt:
            return self._judge(stream, journey)
        if (refusal := self._placing.place(stream)) is None:
            self._leave(stream)
        else:
            self._give_up(stream, Outcome.NO_ENGINE, (journey and journey.error) or refusal)

    def _leave(self, stream: Stream) -> None:
        """The stream got an engine: it waits no longer."""
        if self._moving.pop(stream.id, None) is None:
            self._held.remove(stream.id)
            self._note_held(stream)
        self._stop_waiting(stream)

    def _give_up(self, stream: Stream, outcome: Outcome, error: InferenceError | None) -> None:
        """End a waiting stream; if it was moving, count this outcome."""
        self._held.remove(stream.id)
        if self._moving.pop(stream.id, None) is not None:
            self._note(stream, outcome)
        self._end(stream, error)

    def _end(self, stream: Stream, error: InferenceError | None) -> None:
        """End a stream that no engine has."""
        self._stop_waiting(stream)
        self._note_held(stream)
        stream.settle_as_seen(None if error else "cancelled", error)

    def _stop_waiting(self, stream: Stream) -> None:
        if (timer := self._timers.pop(stream.id, None)) is not None:
            timer.cancel()

    def _note_held(self, stream: Stream) -> None:
        """If the stream was held, it is no longer: record for how long."""
        since, stream.held_since = stream.held_since, None
        if since is None:
            return
        now = time.monotonic()
        stream.held_s = now - since
        self._measures.held(stream.target.base_model, stream.held_s)
        if stream.trace is not None:
            stream.trace.note("hold", since, now)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._place_waiting)

    def _place_waiting(self) -> None:
        """Place waiting requests, as far as engines take them: first moving, then held ones."""
        if self._changed and not self._to_place:
            self._changed = False
            self._aside.clear()
            self._to_place.extend(self._moving.values())
            self._to_place.extend(self._streams[id] for id in self._held.in_order())
        for _ in range(min(LOOKED_AT, len(self._to_place))):
            self._try(self._to_place.popleft())
        self._scheduled = False
        if self._to_place or self._changed:
            self._schedule()

    def _try(self, stream: Stream) -> None:
        """Place a request, unless it waits no longer or needs what another needed in vain."""
        if stream.id in self._held:
            route = self._held[stream.id].kind
        elif stream.id not in self._moving:
            return
        else:
            journey, order = stream.journey, stream.order
            assert journey is not None and order is not None
            if journey.in_doubt:
                return
            route = self._placing.kind(order), journey.pool, frozenset(journey.avoided)
        if route in self._aside:
            return
        if self._placing.place(stream, paced=True) is None:
            self._leave(stream)
        else:
            self._aside.add(route)

    def _judge(self, stream: Stream, journey: Journey) -> None:
        """The wait of rule 3 is over: quarantine the request if two of its engines are gone, else
        place it or let it wait on."""
        journey.in_doubt = False
        if journey.died_twice(link.engine.run for link in self._links.values()):
            self._give_up(
                stream,
                Outcome.QUARANTINED,
                RequestQuarantined(
                    "Two engines were lost while running this request, so it is not "
                    "retried on another one."
                ),
            )
        elif self._placing.place(stream, paced=True) is None:
            self._leave(stream)
        else:
            self._wait(stream, self._holding.seconds)

    def _note(self, stream: Stream, outcome: Outcome) -> None:
        assert stream.journey is not None
        self._moves[stream.journey.why, outcome] += 1
