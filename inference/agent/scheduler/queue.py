"""The queue in front of the engine: what starts next. No engine, no loop; time is passed in.

Rules
    1. Order: the lane `interactive` before `batch`; in a lane, the tenant with the least virtual
       token counter (`vtc`); within a tenant, the oldest (`lane`). A batch request that has
       waited `batch_patience_s` joins its tenant's interactive requests as the youngest of them,
       one at a time: otherwise its tenant's chat would have to wait for all of its batch work.
    2. At most `max_running` choices run, and what they hold fits the KV (`capacity`), so that the
       engine's own waiting queue stays empty. A request takes a sequence for each of its choices,
       or more if it asks for many log-probabilities (`capacity`).
    3. The last `reserved` sequences, and their share of the KV, are for *light* tenants: those that
       have fewer sequences than an equal share of `max_running` (with one more tenant counted), and
       are at most LEEWAY ahead of the least counter. The second condition keeps weights exact: a
       tenant ahead of its share waits like all others, however little it runs. Batch requests
       never use the reserve.
    4. A request that needs an adapter slot gets it in fair order, within bounds (`slot_scheduler`).
    5. A request for which there is too little KV, or too few sequences for all of its choices, is
       overtaken by those that fit until it has waited `patience_s`; after that nothing starts
       before it, except that a light tenant's request may use the reserve while others wait for
       the rest.
    6. An `admit` passes over at most LOOK_AHEAD tenants for which no sequence is free or whose
       request does not fit, so that a rush of a thousand tenants is not scanned at every step. A
       light newcomer is among the first anyway, because it starts level with the least counter.
    7. The requests that wait, and the bytes of their bodies, are bounded in total and per tenant
       (`bounds`). Requests that are expected (their adapter's files are being fetched) count as
       waiting here.
    8. A request that takes more sequences than there are outside of the reserve is refused.
    9. A request that continues from another engine had its turn there: it goes before all others of
       its tenant, is not charged again for what it was charged for there, and is refused by no
       bound on waiting requests.
   10. Long prompts are computed one at a time, and short ones too wait in front of the engine while
       it has enough prompts to compute (`prefill`); they are overtaken meanwhile. A request whose
       prompts the engine computes a few at a time (`QueuedRequest.at_once`) counts with those
       alone, and only until the first of them is computed: after that such requests take turns on
       the engine.

Work-conserving, except for the reserve, a slot that is being emptied or was promised
(`slot_scheduler`), and KV or sequences that a large request waits for.

Life of a request: `push`, maybe after `expect`; some `admit` starts it; `progress` tells what it
has used so far; `finish` ends it. Its prompt is charged by the estimate when it starts, which is
corrected when the engine has counted it; output is charged as it is generated (`charges`).

Cost: `push`, `progress`, `finish` and each start take O(log n) on average, n being the tenants that
wait; `admit` also looks at no more than LOOK_AHEAD tenants and one waiting adapter for each slot.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inference.agent.scheduler import charges
from inference.agent.scheduler.bounds import QueueBounds
from inference.agent.scheduler.capacity import Capacity, growth
from inference.agent.scheduler.lane import QueuedRequest, QueueLane, WaitingRequest
from inference.agent.scheduler.prefill import Prefill
from inference.agent.scheduler.service_gossip import by_lane, service_name
from inference.agent.scheduler.slot_scheduler import SlotScheduler
from inference.agent.scheduler.slots import Slots
from inference.agent.scheduler.wait_estimate import WaitEstimate
from inference.errors import InvalidRequest, Overloaded
from inference.link.wire import BATCH
from inference.scheduler.aging import Aging
from inference.scheduler.vtc import VirtualTokenCounters

LANE_PRIORITY = 1 << 20
"""Distance between the lanes' priorities; more than any engine has sequences."""

LEEWAY = 4096.0
"""Tokens over weight, a few prompts: the counters of equal tenants differ by this at times, because
estimates are corrected only when a prompt has been counted. It also bounds what a tenant gains."""

LOOK_AHEAD = 32
"""Tenants; more than have a long answer running on most engines."""

FIRST_RETURN = -(1 << 62)
"""Numbers below those of arrivals, for requests that continue from another engine."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """One request on the engine. Amounts in tokens; `charged` is what its tenant was charged."""

    request: QueuedRequest
    lane: QueueLane
    priority: int
    held: int
    charged: int = 0
    reported: int = 0
    """What was reported of it to other engines: no estimates, so that it never decreases."""
    computes: bool = True
    """Whether its prompt is still being computed: it has no token yet."""


@dataclass(slots=True)
class Pass:
    """The state of one `admit`."""

    now: float
    passed_over: int = 0
    """Tenants for which no sequence is free or whose request does not fit."""
    reserve_only: bool = False
    """An impatient request does not fit: only light tenants may go before it."""
    over: bool = False
    """Nothing else starts: rule 6, or an impatient request of a light tenant does not fit."""
    heed_quota: bool = True
    deferred: bool = False
    """A tenant at its quota of slots was left for the second round."""


class Queue:
    """Requests waiting for the engine, and those running on it. All times are of one clock."""

    def __init__(
        self,
        slots: Slots,
        *,
        max_running: int,
        kv_tokens: int = 1 << 60,
        step_tokens: int = 1 << 60,
        max_queued: int = 1024,
        max_queued_per_tenant: int = 256,
        max_queued_bytes: int = 256 << 20,
        reserved: int = 0,
        slots_per_tenant: int | None = None,
        patience_s: float = 0.25,
        batch_patience_s: float = 30.0,
    ) -> None:
        self._bounds = QueueBounds(max_queued, max_queued_per_tenant, max_queued_bytes)
        self._patience_s, self._aging = patience_s, Aging[WaitingRequest](batch_patience_s)
        self._slots = SlotScheduler(slots, quota=slots_per_tenant, min_open_s=patience_s)
        self._capacity = Capacity(max_running=max_running, kv_tokens=kv_tokens, reserved=reserved)
        self._prefill = Prefill(step_tokens)
        # What other engines served sets a tenant back by no more than the slack that the counters
        # of two waiting tenants have anyway (`vtc`): one full KV cache.
        self._interactive = QueueLane(VirtualTokenCounters(reach=kv_tokens), self._slots)
        self._batch = QueueLane(VirtualTokenCounters(reach=kv_tokens), self._slots)
        self._lanes = (self._interactive, self._batch)
        self._waiting: dict[str, WaitingRequest] = {}
        self._running: dict[str, RunningRequest] = {}
        self._requests: Counter[str] = Counter()
        """Waiting and running, by tenant."""
        self._arrivals, self._returns = itertools.count(), itertools.count(FIRST_RETURN)
        self._estimate = WaitEstimate()
        self._gained: dict[str, float] = {}

    def __len__(self) -> int:
        """Requests waiting."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests running."""
        return len(self._running)

    # --- a request's life ------------------------------------------------------------------------

    def expect(self, request: QueuedRequest) -> None:
        """A request will be pushed: it counts as waiting from now on.

        Raises:
            InvalidRequest, Overloaded: as `push`.
        """
        self._refuse_beyond_bounds(request)
        self._bounds.expect(request)

    def push(self, request: QueuedRequest, now: float) -> None:
        """A request arrives; `admit` starts it.

        A refused request changes nothing; one that was expected is not refused.

        Raises:
            InvalidRequest: it asks for too many choices or log-probabilities.
            Overloaded: a bound on waiting requests is reached.
        """
        if request.id in self._waiting or request.id in self._running:
            raise ValueError(f"request {request.id} is here already")
        if not self._bounds.expect_no_more(request.id):
            self._refuse_beyond_bounds(request)
        lane = self._batch if request.lane == BATCH else self._interactive
        number = next(self._returns if request.generated else self._arrivals)
        waiting = WaitingRequest(request, number, now, lane)
        lane.add(waiting)
        self._waiting[request.id] = waiting
        self._bounds.add(request)
        self._requests[request.tenant] += 1
        if lane is self._batch:
            self._aging.add(waiting)
        self._advance(now)

    def admit(self, now: float) -> list[str]:
        """Start every request that may start now; returns their ids in order."""
        self._promote(now)
        started: list[str] = []
        step = Pass(now)
        for lane in self._lanes:
            started += self._admit_from(lane, step)
        self._advance(now)
        return started

    def priority(self, id: str) -> int:
        """vLLM's priority of a running request, lower first: by lane, then by how many sequences
        its tenant ran when it started. When KV runs out, vLLM so preempts the tenant with most.

        Raises:
            KeyError: it does not run.
        """
        return self._running[id].priority

    def positions(self, ids: Iterable[str]) -> dict[str, int]:
        """The queue position of each of these that waits, 1 for the next: an estimate, because the
        order depends on what others will have used by then."""
        waiting = [self._waiting[id] for id in ids if id in self._waiting]
        ahead: dict[str, int] = {}
        for lane, before in ((self._interactive, 0), (self._batch, len(self._interactive))):
            own = lane.ahead_of([one for one in waiting if one.lane is lane])
            ahead |= {id: 1 + before + count for id, count in own.items()}
        return ahead

    def progress(
        self, id: str, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int
    ) -> None:
        """What a running request has used so far, in all; ids that do not run are ignored.

        A prompt of 0 tokens is one that the engine has not counted yet. This raises counters, and
        so changes which tenants are light: call `admit` after a step's progress.
        """
        if (running := self._running.get(id)) is None:
            return
        request = running.request
        prompt = prompt_tokens - cached_tokens if prompt_tokens else None
        self._charge(running, charges.so_far(request, prompt, completion_tokens))
        if prompt_tokens:
            self._tell(running)
        held = request.held_of(prompt_tokens or request.workload.prompt_tokens) + completion_tokens
        held += growth(request.workload, completion_tokens)
        self._capacity.kv_held += held - running.held
        running.held = held
        if completion_tokens > request.generated or (request.at_once and prompt_tokens):
            self._end_prefill(running)

    def finish(self, id: str, now: float) -> None:
        """A request has ended, whatever it was doing; unknown ids are ignored."""
        self._bounds.expect_no_more(id)
        if waiting := self._waiting.get(id):
            self._withdraw(waiting)
        elif running := self._running.pop(id, None):
            self._advance(now)
            self._estimate.completed()
            self._end(running)
        self._advance(now)

    # --- several engines -------------------------------------------------------------------------

    def gained(self) -> dict[str, float]:
        """By how much the service of each tenant grew since the last call, in tokens over weight.
        Batch service is listed as `batch:<tenant>`."""
        gained, self._gained = self._gained, {}
        return gained

    def served_elsewhere(self, grown: Mapping[str, float]) -> None:
        """All other engines of the same base model together `gained` this."""
        for lane, increases in zip(self._lanes, by_lane(grown), strict=True):
            lane.counters.served_elsewhere(increases)

    def expected_wait_s(self, tenant: str, lane: str) -> float:
        """How long a request that came now would wait, in seconds, by the rate of completions.

        Ahead of it are its tenant's own requests, expected ones included, and as many of each other
        tenant in its lane; ahead of a batch request also all interactive ones or, once its patience
        is over, its tenant's own of both lanes and as many interactive ones of each other tenant.
        """
        if (
            not self._waiting
            and not self._bounds.expected(tenant)
            and self._capacity.free(reserve=False)
        ):
            return 0.0
        if lane != BATCH:
            return self._estimate.wait_s(1 + self._ahead(self._interactive, tenant))
        in_turn_s = self._estimate.wait_s(
            1 + len(self._interactive) + self._ahead(self._batch, tenant)
        )
        older = self._batch.counters.waiting(tenant)
        ahead = self._ahead(self._interactive, tenant, older)
        return min(in_turn_s, self._aging.patience_s + self._estimate.wait_s(1 + ahead))

    def _ahead(self, lane: QueueLane, tenant: str, elsewhere: int = 0) -> int:
        """Requests of this lane, and the tenant's own, ahead of one that the tenant adds now;
        `elsewhere` more of its own wait in another lane."""
        waiting = lane.counters.waiting(tenant)
        own = waiting + self._bounds.expected(tenant) + elsewhere
        others = lane.counters.tenants_waiting - bool(waiting)
        return own + min(len(lane) - waiting, others * (own + 1))

    # --- admission -------------------------------------------------------------------------------

    def _promote(self, now: float) -> None:
        """Batch requests whose patience is over count as interactive from now, as the youngest."""
        while waiting := self._aging.next_over(now):
            self._batch.remove(waiting)
            self._batch.counters.withdraw(waiting.request.tenant)
            waiting.lane, waiting.number = self._interactive, next(self._arrivals)
            self._interactive.add(waiting)

    def _admit_from(self, lane: QueueLane, step: Pass) -> list[str]:
        """Start what may start of one lane: first heeding the quota of slots, then without."""
        step.heed_quota, step.deferred = True, False
        started = self._round(lane, step)
        if step.deferred:
            step.heed_quota = False
            started += self._round(lane, step)
        return started

    def _round(self, lane: QueueLane, step: Pass) -> list[str]:
        started: list[str] = []
        while not step.over and self._capacity.free(reserve=True):
            if (first := lane.first()) is None:
                break
            tenant = first.request.tenant
            light = self._is_light(lane, tenant)
            if not light and (step.reserve_only or not self._capacity.free(reserve=False)):
                if lane is self._batch or not self._is_level(lane, tenant):
                    break  # no tenant behind it is light either
                self._pass_over(lane, tenant, step)
            elif not self._prefill.takes(first.request.prefill_tokens):
                self._pass_over(lane, tenant, step)
            elif not self._may_have_slot(first, step):
                self._want_slot(lane, first, step)
            elif self._fits(first.request, reserve=light):
                self._start(first, step.now)
                started.append(first.request.id)
            else:
                self._pass_over(lane, tenant, step)
                self._hold_room(first, step, light=light)
        lane.restore()
        return started

    def _is_light(self, lane: QueueLane, tenant: str) -> bool:
        """Rule 3: whether this tenant may use the reserve; without a reserve, all are light."""
        if not self._capacity.reserved:
            return True
        if lane is self._batch or not self._is_level(lane, tenant):
            return False
        return self._capacity.running(tenant) < self._capacity.share(len(self._requests))

    def _is_level(self, lane: QueueLane, tenant: str) -> bool:
        return lane.counters.counter(tenant) <= lane.counters.least + LEEWAY

    def _may_have_slot(self, waiting: WaitingRequest, step: Pass) -> bool:
        tenant, adapter = waiting.request.tenant, waiting.request.adapter
        if not step.heed_quota or self._slots.open_to(adapter):
            return self._slots.free_for(adapter)
        return self._slots.free_for(adapter) and not self._slots.at_quota(tenant)

    def _want_slot(self, lane: QueueLane, waiting: WaitingRequest, step: Pass) -> None:
        """The request waits for a slot: get it one, or set it aside for the next request."""
        tenant, adapter = waiting.request.tenant, waiting.request.adapter
        assert adapter is not None, "the base model needs no slot"
        if step.heed_quota and self._slots.at_quota(tenant):
            step.deferred = True
            lane.pass_over_wanting(tenant)
        elif self._slots.ask(adapter, tenant, step.now, impatient=self._impatient(waiting, step)):
            if self._slots.open_to(adapter):
                self._open([adapter])
            else:
                lane.pass_over_line(waiting)
        else:
            lane.pass_over_all_wanting()

    def _hold_room(self, waiting: WaitingRequest, step: Pass, *, light: bool) -> None:
        """Rule 5: the request does not fit; note which tenants may still go before it."""
        if self._impatient(waiting, step):
            step.reserve_only = True
            step.over |= light

    def _pass_over(self, lane: QueueLane, tenant: str, step: Pass) -> None:
        lane.pass_over(tenant)
        step.passed_over += 1
        step.over |= step.passed_over >= LOOK_AHEAD

    def _impatient(self, waiting: WaitingRequest, step: Pass) -> bool:
        return step.now - waiting.since >= self._patience_s

    def _start(self, waiting: WaitingRequest, now: float) -> None:
        request, lane = waiting.request, waiting.lane
        self._leave(waiting)
        lane.counters.start(request.tenant)
        priority = self._lanes.index(lane) * LANE_PRIORITY + self._capacity.running(request.tenant)
        running = RunningRequest(request, lane, priority, _held(request))
        self._running[request.id] = running
        self._capacity.start(
            request.tenant, running.held, self._capacity.sequences(request.workload)
        )
        self._prefill.start(request.prefill_tokens)
        self._open(self._slots.start(request.adapter, request.tenant, now))
        self._charge(running, charges.at_start(request))

    # --- bookkeeping -----------------------------------------------------------------------------

    def _refuse_beyond_bounds(self, request: QueuedRequest) -> None:
        self._refuse_too_many(request)
        if request.generated:
            return
        reason = self._bounds.refusal(
            request,
            own=sum(lane.counters.waiting(request.tenant) for lane in self._lanes),
            waiting=len(self._waiting),
            tenants=sum(lane.counters.tenants_waiting for lane in self._lanes),
        )
        if reason is None:
            return
        wait_s = self.expected_wait_s(request.tenant, request.lane)
        raise Overloaded(f"{reason}; try again later.", retry_after_s=wait_s)

    def _refuse_too_many(self, request: QueuedRequest) -> None:
        workload = request.workload
        if workload.choices > (most := max(1, self._capacity.open)):
            raise InvalidRequest(
                f"The request has {workload.choices} choices (`n` for each prompt): at most "
                f"{most} are allowed.",
                param="n",
            )
        if self._capacity.sequences(workload) > most:
            raise InvalidRequest(
                f"The request has {workload.choices * workload.logprobs} log-probabilities "
                f"per token over all choices: at most {self._capacity.open_logprobs} are "
                "allowed.",
                param="logprobs",
            )

    def _fits(self, request: QueuedRequest, *, reserve: bool) -> bool:
        sequences = self._capacity.sequences(request.workload)
        return self._capacity.fits(_held(request), sequences, reserve=reserve)

    def _leave(self, waiting: WaitingRequest) -> None:
        """The request waits no longer. The caller then tells the counters why."""
        request = waiting.request
        del self._waiting[request.id]
        waiting.lane.remove(waiting)
        self._aging.discard(waiting)
        self._bounds.remove(request)

    def _withdraw(self, waiting: WaitingRequest) -> None:
        """A waiting request has ended: its client left."""
        request = waiting.request
        self._leave(waiting)
        waiting.lane.counters.withdraw(request.tenant)
        if request.adapter and not any(lane.waits_for(request.adapter) for lane in self._lanes):
            self._open(self._slots.forget(request.adapter))
        self._forget(request.tenant)

    def _end(self, running: RunningRequest) -> None:
        """A running request has ended. If its prompt was never counted, the estimate stays charged:
        otherwise a client that cancels soon enough would get the prefill for nothing."""
        request = running.request
        self._tell(running)
        self._end_prefill(running)
        running.lane.counters.finish(request.tenant)
        self._capacity.finish(
            request.tenant, running.held, self._capacity.sequences(request.workload)
        )
        self._open(self._slots.finish(request.adapter))
        self._forget(request.tenant)

    def _end_prefill(self, running: RunningRequest) -> None:
        if running.computes:
            running.computes = False
            self._prefill.end(running.request.prefill_tokens)

    def _forget(self, tenant: str) -> None:
        self._requests[tenant] -= 1
        if not self._requests[tenant]:
            del self._requests[tenant]

    def _open(self, adapters: Iterable[str]) -> None:
        for adapter in adapters:
            for lane in self._lanes:
                lane.opened(adapter)

    def _charge(self, running: RunningRequest, tokens: int) -> None:
        """The request has used `tokens` in all."""
        if tokens != running.charged:
            request = running.request
            running.lane.charge(request.tenant, (tokens - running.charged) / request.weight)
            running.charged = tokens

    def _tell(self, running: RunningRequest) -> None:
        if running.charged > running.reported:
            request = running.request
            name = service_name(request.tenant, batch=running.lane is self._batch)
            more = (running.charged - running.reported) / request.weight
            self._gained[name] = self._gained.get(name, 0.0) + more
            running.reported = running.charged

    def _advance(self, now: float) -> None:
        self._estimate.advance(now, waiting=bool(self._waiting))


def _held(request: QueuedRequest) -> int:
    workload, generated = request.workload, request.generated
    return request.held_of(workload.prompt_tokens) + generated + growth(workload, generated)
