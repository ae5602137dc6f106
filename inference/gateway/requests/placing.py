"""Decides which engine the next attempt of a request runs on, and makes the frame for it.

A request that waited is given only to an engine that has fewer than TAKEN_UP of this gateway's
requests without a first token. That slows nothing down: more would only wait in the engine's queue.

A request may go to an overflow engine instead (`routing.overflow`), always as one that waited, or
to a prefill engine first (`routing.prefill`).

An attempt that continues where the reader is needs an engine of the same revision. A request can't
move, and so ends with its engine, if it is being ended anyway, or if its body is beyond its
tenant's share of `kept_bytes`.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from contextlib import suppress

import msgspec

from inference.errors import GenerationTimeout, Overloaded
from inference.gateway.fleet.dispatches import Bounds, Dispatches
from inference.gateway.fleet.engine_link import EngineLink
from inference.gateway.fleet.orphans import FoundOrphan
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.attempt import Attempt
from inference.gateway.requests.candidates import Candidates, MayTake
from inference.gateway.requests.journey import Journey
from inference.gateway.requests.request import Request
from inference.gateway.routing.engine_state import Needs
from inference.gateway.routing.overflow import Overflow
from inference.gateway.routing.popularity import Popularity
from inference.gateway.routing.prefill import PrefillPolicy
from inference.link.accounts import first_attempt
from inference.link.wire import Adopt, Resume, Submit
from inference.pools import Pool
from inference.shared_capacity import SharedCapacity

TAKEN_UP = 64
"""Low enough for several gateways at the same time: an agent's queue holds 1,024."""


class Placing:
    """Prepares attempts of requests."""

    def __init__(
        self,
        candidates: Candidates,
        dispatches: Dispatches,
        overflow: Overflow,
        prefill: PrefillPolicy,
        *,
        kept_bytes: int,
    ) -> None:
        """At most `kept_bytes` of bodies are kept, so that their requests can move."""
        self.pools: Mapping[str, Pool] = {}
        """By base model; requests for a model that is not here may run on any of its revisions."""
        self._candidates, self._dispatches = candidates, dispatches
        self._overflow, self._prefill = overflow, prefill
        self._kept = SharedCapacity[str](kept_bytes)
        """Bytes of kept bodies, by tenant."""
        self._popularity = Popularity()

    def kind(self, order: AdmittedRequest) -> Hashable:
        """A key for what the request needs: requests of one kind can run on the same engines."""
        needs = self._needs(order)
        adapter = needs.adapter
        shape = None if adapter is None else (adapter.rank, adapter.modules)
        can = needs.base_model, needs.operation, needs.parsers, shape, needs.tiers
        return *can, order.overflows

    def next_attempt(
        self, request: Request, now: float, *, paced: bool = False
    ) -> tuple[Attempt, Submit]:
        """The request's next attempt, and the frame that submits it to its engine. With `paced`,
        on an engine that has fewer than TAKEN_UP unbegun requests.

        Raises:
            NoEngine, Overloaded: no engine can take it now.
            InvalidRequest: no engine ever will.
            GenerationTimeout: its time is over.
        """
        order = request.order
        assert order is not None, "it can go to an engine"
        left_s = request.left_s(now)
        if left_s <= 0:
            raise GenerationTimeout
        resume = request.delivered.resume(request.ttft_s, request.elapsed_s(now))
        link = self._link_for(request, order, resume, now, paced=paced)
        self._keep(request, order)
        first = self._prefill_link(request, order, link, now)
        kept, link = request.kept_prompt, first or link
        most = order.most(link.engine.info.max_model_len)
        keeps = request.delivered.keeps and first is None
        prefill_s = None if first is None else self._prefill.wait_s
        attempt = Attempt(link, request.attempts + 1, most, now, prefill_s, keeps=keeps)
        frame = order.frame(
            self._dispatches,
            link.credential.id,
            most,
            attempt=attempt.number,
            timeout_s=left_s,
            given_s=request.elapsed_s(now),
            ids=request.may_move_again,
            resume=resume,
            trace=_trace(request, attempt),
            keeps=keeps,
            overflow=link.engine.info.overflow,
            prefill=attempt.prefills,
            handover=None if kept is None else kept.given(link.engine, now),
        )
        return attempt, frame

    def _prefill_link(
        self, request: Request, order: AdmittedRequest, link: EngineLink, now: float
    ) -> EngineLink | None:
        """The link of the prefill engine that computes the prompt before the request goes to this
        one; None if it goes there at once."""
        if request.journey is not None or not request.is_kept:
            return None
        if not self._prefill.wants(order.workload, order.prefix, link.engine):
            return None

        def may_take(one: EngineLink) -> bool:
            return one.unbegun < TAKEN_UP and one.engine.pool == link.engine.pool

        return self._candidates.choose_prefill(
            self._needs(order), may_take, within_s=self._prefill.wait_s, now=now
        )

    def needed(self, request: Request) -> Hashable:
        """A key for what a request needs that left an engine: as `kind`, and the engines that may
        continue it."""
        order, journey = request.order, request.journey
        assert order is not None and journey is not None
        return self.kind(order), journey.pool, frozenset(journey.avoided)

    def _link_for(
        self,
        request: Request,
        order: AdmittedRequest,
        resume: Resume | None,
        now: float,
        *,
        paced: bool,
    ) -> EngineLink:
        journey = request.journey
        any_may = journey is None and not paced
        may_take = None if any_may else _may_take(journey, resume, paced=paced)
        # A resumed request stays on its revision, even if rollouts changed what serves since.
        needs = self._needs(order) if resume is None else order.needs()
        if (overflow := self.overflow_for(request, now)) is not None:
            return overflow
        if (kept := request.kept_prompt) is not None:
            with suppress(Overloaded):
                fits = _may_take(journey, None, paced=paced)
                return self.decide(needs, lambda link: kept.suits(link.engine) and fits(link))
        try:
            return self.decide(needs, may_take)
        except Overloaded as refusal:
            raise self._candidates.permanent_refusal(needs) or refusal from None

    def overflow_for(self, request: Request, now: float) -> EngineLink | None:
        """The link of the overflow engine that the request goes to now; None if it doesn't."""
        order, journey, wait_s = request.order, request.journey, self._overflow.wait_s
        if order is None or not request.overflows:
            return None
        if not self._overflow.has_room(order.workload, now):
            return None
        needs = self._needs(order)
        avoided = frozenset() if journey is None else journey.avoided
        is_due = self._overflow.is_due(request.elapsed_s(now))
        if not (is_due or self._candidates.all_busy(needs, wait_s, avoided, now=now)):
            return None
        takes = _may_take(journey, None, paced=True)
        return self._candidates.choose_overflow(needs, takes, within_s=wait_s, now=now)

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

    def adoption(
        self, request: Request, found: FoundOrphan, turn: int, now: float
    ) -> tuple[Attempt, Adopt]:
        """The attempt that continues an orphaned answer in this turn, and the frame for its
        engine."""
        link, orphan = found.link, found.orphan
        order, dispatch = request.order, orphan.account.dispatch
        assert order is not None
        assert dispatch is not None, "what is not signed is not known as an orphan"
        self._keep(request, order)
        most = Bounds(dispatch.prompt_tokens, dispatch.output_tokens)
        attempt = Attempt(link, first_attempt(turn), most, now, keeps=True)
        _trace(request, attempt)
        account = msgspec.structs.replace(
            orphan.account,
            given_s=request.elapsed_s(now),
            trace_id=orphan.account.trace_id if order.trace is None else order.trace.trace_id,
        )
        account = self._dispatches.signed(
            account,
            (orphan.id, attempt.number),
            orphan.model,
            credential=link.credential.id,
            most=most,
        )
        watched = order.watch is not None
        return attempt, Adopt(orphan.id, attempt.number, orphan.attempt, account, watched)

    def forget(self, tenant: str, size: int) -> None:
        """A body of this tenant, with so many bytes, is no longer kept."""
        self._kept.give_back(tenant, size)

    def _needs(self, order: AdmittedRequest) -> Needs:
        return order.needs(self.pools.get(order.target.base_model))

    def _keep(self, request: Request, order: AdmittedRequest) -> None:
        """Count the order's body as kept, if there is room."""
        tenant, size = request.grant.tenant, len(order.body)
        if not request.kept and self._kept.take(tenant, size):
            request.kept = size


def _may_take(journey: Journey | None, resume: Resume | None, *, paced: bool) -> MayTake:
    """Whether the engine of a link may have a request with this journey."""

    def may_take(link: EngineLink) -> bool:
        if paced and link.unbegun >= TAKEN_UP:
            return False
        if journey is None:
            return True
        engine = link.engine
        alike = resume is None or (engine.info.resumes and engine.pool == journey.pool)
        return alike and link.engine not in journey.avoided

    return may_take


def _trace(request: Request, attempt: Attempt) -> str:
    """Begin the span of this attempt; returns its `traceparent`, for the engine."""
    if request.trace is None:
        return ""
    attempt.span = request.trace.begin("attempt", attempt.sent_at)
    return attempt.span.traceparent
