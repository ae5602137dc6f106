"""Decides which engine an attempt of a request runs on, and sends it the request.

A request that waited is given only to an engine that has fewer than TAKEN_UP of this gateway's
requests without a first token. That slows nothing down: more would only wait in the engine's queue.

An attempt that continues where the reader is needs an engine of the same revision. A request can't
move, and so ends with its engine, if it is being ended anyway, or if its body is beyond its
tenant's share of `kept_bytes`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping

import msgspec

from inference.errors import GenerationTimeout, InferenceError, Overloaded
from inference.gateway.fleet.dispatches import Bounds, Dispatches
from inference.gateway.fleet.engine_link import EngineLink, Leg
from inference.gateway.fleet.orphans import Found
from inference.gateway.requests.candidates import Candidates, MayTake
from inference.gateway.requests.journey import MAX_MOVES, Outcome, Why
from inference.gateway.requests.order import Order
from inference.gateway.requests.stream import Stream
from inference.gateway.routing.engine_state import Needs
from inference.gateway.routing.popularity import Popularity
from inference.link.wire import Adopt, Orphan, Resume
from inference.pools import Pool
from inference.shared_capacity import SharedCapacity

TAKEN_UP = 64
"""Low enough for several gateways at the same time: an agent's queue holds 1,024."""

Moves = Counter[tuple[Why, Outcome]]
"""How often requests left an engine for another, by reason and outcome."""


class Placing:
    """Starts attempts of requests."""

    def __init__(
        self,
        candidates: Candidates,
        dispatches: Dispatches,
        moves: Moves,
        *,
        kept_bytes: int,
    ) -> None:
        """At most `kept_bytes` of bodies are kept, so that their requests can move."""
        self.pools: Mapping[str, Pool] = {}
        """By base model; requests for a model that is not here may run on any of its revisions."""
        self._candidates, self._dispatches, self._moves = candidates, dispatches, moves
        self._kept = SharedCapacity[str](kept_bytes)
        """Bytes of kept bodies, by tenant."""
        self._popularity = Popularity()

    def kind(self, order: Order) -> Hashable:
        """A key for what the request needs: requests of one kind can run on the same engines."""
        needs = self._needs(order)
        adapter = needs.adapter
        shape = None if adapter is None else (adapter.rank, adapter.modules)
        return needs.base_model, needs.operation, needs.parsers, shape, needs.tiers

    def place(self, stream: Stream, *, paced: bool = False) -> InferenceError | None:
        """Start the stream's next attempt; returns why that is not possible now, or None. With
        `paced`, only on an engine that has fewer than TAKEN_UP unbegun requests."""
        order = stream.order
        assert order is not None, "it waits, so it can go to an engine"
        left_s = order.timeout_s - stream.elapsed_s
        if left_s <= 0:
            return GenerationTimeout()
        resume = stream.delivered.resume(stream.ttft_s, stream.elapsed_s)
        journey = stream.journey

        def may_take(link: EngineLink) -> bool:
            if paced and link.unbegun >= TAKEN_UP:
                return False
            if journey is None:
                return True
            alike = resume is None or link.engine.pool == journey.pool
            return alike and link not in journey.avoided

        any_may = journey is None and not paced
        # A resumed request stays on its revision, even if rollouts changed what serves since.
        needs = self._needs(order) if resume is None else order.needs()
        try:
            link = self.decide(needs, None if any_may else may_take)
        except Overloaded as refusal:
            return self._candidates.permanent_refusal(needs) or refusal
        self._start(stream, order, link, left_s, resume)
        return None

    def decide(self, needs: Needs, may_take: MayTake | None = None) -> EngineLink:
        """The link of the engine that a request with these needs goes to now, among those for which
        `may_take` holds.

        Raises:
            NoEngine, Overloaded: no engine can take it.
        """
        needs = self._popularity.weighed(needs)
        link = self._candidates.choose(needs, may_take, now=time.monotonic())
        self._popularity.note(needs)
        return link

    def adopt(self, stream: Stream, order: Order, found: Found, attempt: int) -> None:
        """Continue an orphaned answer, as this attempt. If the order has no body it can't move."""
        link, orphan = found.link, found.orphan
        stream.attempt = attempt
        stream.may_have_cost = True
        self._keep(stream, order)
        dispatch = orphan.account.dispatch
        assert dispatch is not None, "what is not signed is not known as an orphan"
        most = Bounds(dispatch.prompt_tokens, dispatch.output_tokens)
        stream.delivered.begin(most, exact=self._is_exact(stream, order))
        leg = Leg(stream, link, stream.attempt, most, keeps=True)
        stream.given_to(leg)
        self._trace(stream, leg)
        link.adopt(leg, self._adoption(stream, order, link, orphan, most))
        if not order.body or stream.kept < len(order.body):
            stream.stay()

    def forget(self, stream: Stream) -> None:
        """The stream's body is no longer kept: give its bytes back."""
        self._kept.give_back(stream.grant.tenant, stream.kept)

    def _needs(self, order: Order) -> Needs:
        return order.needs(self.pools.get(order.target.base_model))

    def _start(
        self, stream: Stream, order: Order, link: EngineLink, left_s: float, resume: Resume | None
    ) -> None:
        self._keep(stream, order)
        journey, exact = stream.journey, self._is_exact(stream, order)
        most = order.most(link.engine.info.max_model_len)
        stream.delivered.begin(most, exact=exact)
        stream.attempt += 1
        keeps = stream.delivered.keeps
        leg = Leg(stream, link, stream.attempt, most, keeps=keeps)
        stream.given_to(leg)
        frame = order.frame(
            self._dispatches,
            link.credential.id,
            most,
            attempt=stream.attempt,
            timeout_s=left_s,
            given_s=stream.elapsed_s,
            ids=exact,
            resume=resume,
            trace=self._trace(stream, leg),
            keeps=keeps,
        )
        link.submit(leg, frame)
        if stream.kept < len(order.body):
            stream.stay()
        if journey is not None:
            outcome = Outcome.BEGUN_ANEW if resume is None else Outcome.RESUMED
            self._moves[journey.why, outcome] += 1

    @staticmethod
    def _trace(stream: Stream, leg: Leg) -> str:
        """Begin the span of this attempt; returns its `traceparent`, for the engine."""
        if stream.trace is None:
            return ""
        leg.span = stream.trace.begin("attempt", time.monotonic())
        return leg.span.traceparent

    def _keep(self, stream: Stream, order: Order) -> None:
        """Count the order's body as kept, if there is room."""
        tenant, size = stream.grant.tenant, len(order.body)
        if not stream.kept and self._kept.take(tenant, size):
            stream.kept = size

    @staticmethod
    def _is_exact(stream: Stream, order: Order) -> bool:
        """Whether the request may move from its engine to another, so that this one has to report
        token ids."""
        journey = stream.journey
        may_move = journey is None or journey.moves < MAX_MOVES
        return may_move and stream.kept == len(order.body)

    def _adoption(
        self, stream: Stream, order: Order, link: EngineLink, orphan: Orphan, most: Bounds
    ) -> Adopt:
        account = msgspec.structs.replace(
            orphan.account,
            given_s=stream.elapsed_s,
            trace_id=orphan.account.trace_id if order.trace is None else order.trace.trace_id,
        )
        account = self._dispatches.signed(
            account,
            (orphan.id, stream.attempt),
            orphan.model,
            credential=link.credential.id,
            most=most,
        )
        watched = order.watch is not None
        return Adopt(orphan.id, stream.attempt, orphan.attempt, account, watched)
