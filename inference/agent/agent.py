"""The agent: requests of all gateways, one queue, one engine, one journal.

A request's life here: its adapter's files are fetched (before admission, so that a slow fetch
holds no slot), it waits its turn in the queue, its adapter is loaded on the engine if it isn't
there, it is entered in the journal, and then the engine generates. Each step's deltas go to the
gateway's link, after the journal has them. Whatever ends it, one `done` with the final figures
follows, unless the gateway itself is gone, and one entry for the ledger, to any gateway.

A request may come with what another engine has generated of it (`wire.Resume`), and is continued
from there. Conversely, when this agent must stop before its requests end, it gives them up: their
`done` says `moved`, and their gateway has another engine continue them. A whole (non-streaming)
answer with log-probabilities cannot be continued, because those of its tokens are only on the
engine that computed them; its gateway starts it again.

A request whose gateway is gone ends with it, unless it came with a grace: then it goes on for that
time, and the gateway that adopts it gets all of its answer (`kept_answers`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import msgspec
import structlog

from inference.agent.adapters.residency import Residency, ResidencyStore
from inference.agent.admission import Admission
from inference.agent.engines.engine import Engine, EngineOutput, EngineWork, key_of
from inference.agent.failures import DIED, HUNG, EngineFailures
from inference.agent.job import CANCELLED, Job, fault_of, reason_of
from inference.agent.journal.billing import Billing
from inference.agent.journal.files import JournalFailed
from inference.agent.journal.journal import Journal
from inference.agent.kept_answers import KEPT_BYTES, KeptAnswers
from inference.agent.link import AgentLink
from inference.agent.links import Links
from inference.agent.outbox import too_long
from inference.agent.progress import Progress
from inference.agent.report_times import LinkReport, ReportTimes
from inference.agent.scheduler.lane import QueuedRequest
from inference.agent.scheduler.queue import Queue
from inference.agent.scheduler.slots import Slots
from inference.agent.warm_prefixes import PrefixChange, WarmPrefixes
from inference.agent.watchdog import until_hung
from inference.errors import EngineFailed, InferenceError
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.engine_info import EngineStats, Suspect
from inference.link.wire import GONE, LEFT, MOVED, Done, Fault, Frame, Load, Loaded
from inference.operations.registry import OPERATIONS, OperationRegistry
from inference.process.supervision import in_background
from inference.tracing import Attributes, Tracer

log = structlog.get_logger(__name__)

TICK_S = 0.1
"""How often tenants are charged, usage is reported, and answers that don't stream report progress;
also the precision of the times at which the engine's state is reported."""

MAX_AWAITED = 64
"""Adapters reported as having requests that wait for them, at most."""

FAREWELL_S = 2.0
"""How long to wait while the gateways are told that the engine failed, or stops."""

GATEWAY_LOST = "gateway_lost"
"""The finish reason of a request whose gateway is gone and that no other gateway adopted."""

Task = asyncio.Task[Done | Loaded]
"""Runs a job; its result is the job's final frame."""


class Agent:
    """One engine, served to every gateway."""

    def __init__(
        self,
        engine: Engine,
        store: ResidencyStore,
        journal: Journal,
        *,
        id: str,
        credential: str,
        max_running: int,
        max_resident: int,
        max_unbilled: int = 100_000,
        failures: EngineFailures | None = None,
        hung_after_s: float = 300.0,
        tracer: Tracer | None = None,
        kept_bytes: int = KEPT_BYTES,
        operations: OperationRegistry = OPERATIONS,
        **queue: Any,
    ) -> None:
        """`credential` authenticates it to gateways. `max_running` bounds the requests on the
        engine, `max_resident` the loaded adapters, `kept_bytes` the answers kept for gateways that
        may adopt them. An engine that is busy and answers nothing for `hung_after_s` counts as hung
        (0: never). `tracer` makes spans of requests; `queue` holds further options of `Queue`."""
        self.id = id
        self._run_id = uuid4().hex
        self._engine = engine
        self._operations, self._tracer = operations, tracer
        self._billing = Billing(journal, max_unbilled=max_unbilled)
        self._slots = Slots(active=engine.info.max_loras, resident=max_resident)
        self._queue = Queue(
            self._slots,
            max_running=max_running,
            kv_tokens=engine.info.kv_tokens,
            step_tokens=engine.step_tokens,
            **queue,
        )
        self._watch = Progress(self._queue)
        self._kept = KeptAnswers(kept_bytes)
        self._no_orphans = asyncio.Event()
        self._no_orphans.set()
        """Set while no answer is without a gateway."""
        self._adopted: dict[str, str] = {}
        """Keys of adopted jobs, by the keys of their current attempts."""
        self._warm = WarmPrefixes()
        self._tells_warmth = engine.cache_news() is not None
        self._residency = Residency(engine, store, self._slots, self._publish)
        self._links = Links(self, id, credential)
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, Task] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._failures, self._hung_after_s = failures or EngineFailures(), hung_after_s
        self._admission = Admission(
            self._jobs,
            self._queue,
            failures=self._failures,
            store=store,
            residency=self._residency,
            progress=self._watch,
        )
        self._failed = False
        self._stopped = False
        """`run` is over: an engine that ends after that has not failed on its requests."""
        self._how_failed = ""
        self._idle = asyncio.Event()
        self._idle.set()
        self._billed = asyncio.Event()
        self.joined = asyncio.Event()
        """Set once a gateway has welcomed it."""

    # --- life ------------------------------------------------------------------------------------

    async def run(self, gateways: Iterable[str]) -> None:
        """Serve the gateways (base URLs, and every other that they name) until the engine dies or
        hangs, or the journal cannot be written: what can't be billed isn't generated."""
        self._links.start(gateways)
        times = ReportTimes(self._engine.info.kv_tokens, time.monotonic())
        hung = asyncio.create_task(until_hung(self._engine, self._hung_after_s, self._is_busy))
        try:
            while self._engine.alive and not self._failed and not hung.done():
                await asyncio.sleep(TICK_S)
                self._tick()
                self._report(times)
            if not self._failed:
                self._note_failure(HUNG if self._engine.alive else DIED)
                await self._report_failure()
        finally:
            self._stopped = True
            hung.cancel()
            self._links.cancel()

    def _is_busy(self) -> bool:
        return any(job.admitted_at is not None for job in self._jobs.values())

    def _note_failure(self, how: str) -> None:
        """The engine failed: remember what ran, and tell the gateways before their clients can try
        again."""
        if self._how_failed or self._stopped:
            return
        self._how_failed = how
        ran = [job for job in self._jobs.values() if job.digest and job.submitted_at is not None]
        self._tell_all(self._failures.note(how, self._run_id, ran))
        log.error("engine_failed", how=how, requests=[job.id for job in ran])

    async def _report_failure(self) -> None:
        """Tell every gateway why the agent ends, after the final frames of the requests that failed
        with the engine."""
        error = EngineFailed(f"The engine {self._how_failed} and is being restarted.")
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                if self._how_failed == DIED:
                    await self._idle.wait()
                self._links.post(wire.Error(Fault.of(error)))
                await self._links.flushed()

    def _tell_all(self, suspects: list[Suspect]) -> None:
        if suspects:
            self._links.post(wire.SuspectList(suspects))

    async def drain(self, timeout_s: float) -> None:
        """Take no new work, tell every gateway so, and finish what runs. What is left after
        `timeout_s` moves to other engines, if its gateway can have it moved."""
        self._refuse_new()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
                await self._no_orphans.wait()  # gateways may still adopt what is kept
                await self._settled()
        except TimeoutError:
            await self._move()

    async def _move(self) -> None:
        """Give up what other engines can continue, and say so; end what has no gateway."""
        moving = [key for key, job in self._jobs.items() if job.movable]
        log.warning("drain_cut_short", requests=len(self._jobs), moving=len(moving))
        ending = [self._tasks[key] for key in moving]
        for key in moving:
            self._cancel(key, MOVED)
        for job in [one for one in self._jobs.values() if one.link is None]:
            self._cancel(job.key, GATEWAY_LOST)
            ending.append(self._tasks[job.key])
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await asyncio.gather(*ending, return_exceptions=True)
                await self._settled()

    async def _settled(self) -> None:
        """Wait until what has ended is in a ledger, and all frames have been sent."""
        self._note_billed()
        await self._billed.wait()
        await self._links.flushed()

    def _cancel(self, key: str, reason: str) -> None:
        if task := self._tasks.get(key):  # else the job ended while the cancel was on its way
            self._jobs[key].cancel_reason = reason
            task.cancel()

    def _refuse_new(self) -> None:
        self._admission.close()
        self._links.drain()

    # --- what links ask (link.Owner) -------------------------------------------------------------

    def hello(self) -> wire.Hello:
        """The first frame to a gateway."""
        return wire.Hello(
            wire.OLDEST_VERSION,
            wire.PROTOCOL_VERSION,
            self.id,
            self._engine.info,
            self.stats(),
            self._run_id,
            self._warm.all() if self._tells_warmth else None,
        )

    def warmed_since(self, mark: int) -> PrefixChange:
        """What the engine's prefix cache stored and removed after this mark."""
        return self._warm.since(mark)

    def heard(self, link: AgentLink, frame: Frame) -> None:
        """Act on a gateway's frame."""
        match frame:
            case wire.Submit() | Load():
                self._begin(Job.of(frame, link), frame)
            case wire.Adopt() | wire.Cancel():
                self._heard_of_job(frame, link)
            case wire.UsageAck(attempts=attempts):
                self._billing.acknowledged(attempts, link.url)
                self._note_billed()
            case wire.Others() | wire.SuspectList():
                self._heard_of_others(frame, link)
            case wire.PinnedAdapters(adapters=refs):
                self._slots.pin([ref.digest for ref in refs])
                in_background(self._background, self._residency.keep(refs, link.url))
            case wire.Unload(digest=digest):
                self._slots.retire(digest)
                in_background(self._background, self._residency.unload_retired())
            case wire.Welcome():
                self._welcomed(link, frame)
            case wire.Gateways(gateways=gateways):
                self._links.follow(gateways)
            case wire.Drain():  # asked for by an operator; the agent tells the other gateways
                self._refuse_new()
            case _:
                pass

    def _heard_of_job(self, frame: wire.Adopt | wire.Cancel, link: AgentLink) -> None:
        """Act on a gateway's frame about a request that is here."""
        if isinstance(frame, wire.Adopt):
            self._adopt(frame, link)
        else:
            self._heard_cancel(frame, link)

    def _heard_of_others(self, frame: wire.Others | wire.SuspectList, link: AgentLink) -> None:
        """Act on what gateways pass on from other engines' agents."""
        if isinstance(frame, wire.SuspectList):
            self._failures.heard(frame.suspects)
        else:
            link.engines_seen = frame.engines
            self._queue.heard(frame.served)

    def _welcomed(self, link: AgentLink, frame: wire.Welcome) -> None:
        self.joined.set()
        self._billing.link_up(link.url)
        if orphans := self._kept.orphans():
            link.post(wire.OrphanList(orphans))
        if known := self._failures.known():
            link.post(wire.SuspectList(known))
        self._links.follow(frame.gateways)

    def dropped(self, link: AgentLink) -> None:
        """The gateway is gone, or could not be dialled: its requests end, unless another gateway
        may adopt them."""
        now = time.monotonic()
        self._billing.link_down(link.url)
        self._note_billed()
        self._kept.not_dialled(link.url, now)
        for job in list(self._jobs.values()):
            if job.link is link and not self._kept.lost(job, now):
                job.link = None
                self._cancel(job.key, GATEWAY_LOST)
        self._kept.left_behind(link.url, now)

    def sending(self) -> None:
        """Write the journal before anything that follows from it is sent.

        Raises:
            EngineFailed: it cannot be written; nothing may be sent, and the agent stops.
        """
        try:
            self._billing.write()
        except JournalFailed as error:
            log.error("journal_failed", error=str(error))
            self._failed = True
        if self._failed:
            raise EngineFailed("The engine's journal cannot be written.")

    def stats(self) -> EngineStats:
        """The engine's statistics, with what only the agent knows."""
        stats = self._engine.stats()
        journaled, unbilled = self._billing.totals
        return msgspec.structs.replace(
            stats,
            queued=len(self._queue),
            resident=self._residency.names,
            journal=self._billing.journal_id,
            journaled=journaled,
            unbilled=unbilled,
            unjournaled_tokens=stats.completion_tokens - self._billing.completion_tokens,
            failures=self._failures.count,
            last_failure=self._failures.last,
            refused_suspects=self._failures.refusals,
            spare=self._slots.spare,
            **self._demand(),
        )

    def _demand(self) -> dict[str, Any]:
        """The fields of `EngineStats` that describe the requests that are here."""
        queued_tokens, active, awaited = 0, dict[str, None](), dict[str, None]()
        for job in self._jobs.values():
            if job.first_token_at is None:
                tokens, prefix = job.request.workload.prompt_tokens, job.request.prefix
                queued_tokens += tokens
                if prefix is not None:
                    queued_tokens -= self._warm.held_tokens(prefix, tokens)
            if (adapter := job.request.adapter) is not None:
                (awaited if job.admitted_at is None else active)[adapter.name] = None
        waiting = [name for name in awaited if name not in active][:MAX_AWAITED]
        return {"queued_tokens": queued_tokens, "active": list(active), "awaited": waiting}

    # --- requests --------------------------------------------------------------------------------

    def _begin(self, job: Job, frame: wire.Submit | Load) -> None:
        self._jobs[job.key] = job
        if job.request.retention.grace_s > 0:
            self._kept.begin(job, job.request.resume)
        self._idle.clear()
        work = self._probe(job, frame) if isinstance(frame, Load) else self._generate(job)
        task: Task = asyncio.create_task(work, name=job.key)
        self._tasks[job.key] = task
        if job.request.watched:
            self._watch.add(job)
        task.add_done_callback(lambda ended: self._end(job, ended))

    def _end(self, job: Job, task: Task) -> None:
        """However a job ended, even before it began: free what it holds, send its final frame."""
        if not self._engine.alive:
            self._note_failure(DIED)
        self._failures.end_trial(job)
        del self._jobs[job.key], self._tasks[job.key]
        self._adopted.pop(key_of(job.id, job.attempt), None)
        self._watch.discard(job)
        self._admission.end(job)
        if self._slots.to_retire():
            in_background(self._background, self._residency.unload_retired())
        word = self._final_frame(job, task)
        if self._tracer is not None and job.request.trace:
            self._note_parts(job, self._tracer)
        if isinstance(word, Done):
            reason = reason_of(word, job.cancel_reason)
            if word.fault is None and word.finish_reason not in (CANCELLED, MOVED):
                self._tell_all(self._failures.ended_well(job))
            self._billing.close(job, word.usage, reason, time.monotonic())
            self._kept.ended(job, word, time.monotonic())
        if job.link is not None:
            job.link.post(word)
        if not self._jobs:
            self._idle.set()

    def _note_parts(self, job: Job, tracer: Tracer) -> None:
        attributes: Attributes = {
            "lorikeet.request_id": job.id,
            "lorikeet.attempt": job.attempt,
        }
        for name, since, until in job.parts(time.monotonic()):
            tracer.note(job.request.trace, name, since, until, attributes)

    def _final_frame(self, job: Job, task: Task) -> Done | Loaded:
        if task.cancelled():
            moved = job.cancel_reason == MOVED
            return job.final_frame(finish_reason=MOVED if moved else CANCELLED)
        if (error := task.exception()) is None:
            word = task.result()
            if isinstance(word, Done):  # a gateway may have adopted it since
                word = msgspec.structs.replace(word, attempt=job.attempt)
            return word
        if not isinstance(error, InferenceError | TimeoutError):
            log.error("job_crashed", request_id=job.id, exc_info=error)
        return job.final_frame(fault=fault_of(self._operations.reworded(job.request.kind, error)))

    async def _generate(self, job: Job) -> Done:
        structlog.contextvars.bind_contextvars(request_id=job.id)
        if self._admission.closed and job.movable:  # sent before its gateway heard of the drain
            return Done(job.id, job.usage(), MOVED)
        last, operation = EngineOutput(), self._operations.named(job.request.kind)
        await self._failures.recognise(job)
        queued = self._queued(job, pools=operation.pools)
        timeout = asyncio.timeout(job.request.timeout_s)
        async with timeout, self._admission.turn(job, queued) as adapter:
            body, resume = job.take_body()
            request = job.request
            fields = operation.read(body, request.max_tokens)
            del body  # `fields` has all of it
            job.submitted_at = time.monotonic()
            self._watch.moved(job)
            self._billing.open(job)
            if request.prefix is not None:
                self._warm.expect(job.key, request.prefix)
            self.sending()  # journaled before it costs anything on the engine
            work = EngineWork(
                id=job.id,
                operation=operation,
                body=fields,
                model=request.model,
                salt=request.salt,
                adapter=adapter,
                priority=self._queue.priority(job.key),
                created=int(request.account.started_at or time.time()),
                meter=job.meter,
                attempt=job.attempt,
                wants_ids=request.ids,
                resume=resume,
            )
            del fields  # the engine takes them out of the work
            async with aclosing(self._engine.generate(work)) as outputs:
                async for last in outputs:
                    self._pass_on(job, last)
        return Done(job.id, job.usage(), last.finish_reason, last.response)

    def _queued(self, job: Job, *, pools: bool) -> QueuedRequest:
        """What the queue has to know; `pools`: the request generates nothing."""
        request, inherited = job.request, job.inherited
        return QueuedRequest(
            job.key,
            request.tenant,
            request.adapter.digest if request.adapter else None,
            request.workload,
            weight=request.weight,
            lane=request.lane,
            generated=inherited.completion_tokens,
            paid=inherited.prompt_tokens - inherited.cached_tokens + inherited.completion_tokens,
            at_once=self._engine.step_tokens if pools else None,
            size=len(request.body),
        )

    def _pass_on(self, job: Job, output: EngineOutput) -> None:
        if job.first_token_at is None:
            job.first_token_at = time.monotonic()
            self._failures.end_trial(job)
            self._admission.charge(job)
            self._admission.admit()  # the next prompt may be computed
        self._tell(job, output)

    def _tell(self, job: Job, output: EngineOutput | None = None) -> None:
        delta = job.delta(output)
        if delta is not None:
            if delta.prompt_tokens:
                self._warm.counted(job.key, delta.prompt_tokens)
            self._billing.advanced(job)
            if (error := too_long(delta)) is not None:
                raise error
            self._kept.note(job, delta)
            if job.link is not None:
                job.link.add(delta)

    # --- answers without a gateway (kept_answers.KeptAnswers) ------------------------------------

    def _adopt(self, frame: wire.Adopt, link: AgentLink) -> None:
        """A gateway adopts an answer whose own gateway is gone."""
        kept = self._kept.adopt((frame.id, frame.of))
        if kept is None:
            link.post(Done(frame.id, Usage(), GONE, attempt=frame.attempt))
            return
        job, now = kept.job, time.monotonic()
        job.link = link
        self._adopted.pop(key_of(job.id, job.attempt), None)
        log.info("answer_adopted", request_id=job.id, gateway=link.url, attempt=frame.attempt)
        if (done := kept.done) is None:
            self._billing.adopted(job, frame.attempt, frame.account, now)
            self._adopted[key_of(job.id, job.attempt)] = job.key
        else:
            ended = done.usage, reason_of(done, CANCELLED)
            self._billing.adopted_ended(job, frame.attempt, frame.account, ended, now)
        if kept.text:
            link.add(kept.text.delta(job.id, job.attempt))
        if done is not None:
            link.post(msgspec.structs.replace(done, attempt=job.attempt))
        elif frame.watched:
            self._watch.add(job)
            self._watch.moved(job)
        self._tell_orphans()

    def _heard_cancel(self, frame: wire.Cancel, link: AgentLink) -> None:
        key = key_of(frame.id, frame.attempt)
        key = self._adopted.get(key, key)
        job = self._jobs.get(key)
        if job is None or job.attempt != frame.attempt:
            self._kept.cancel((frame.id, frame.attempt))
        elif frame.reason != LEFT or job.link is not link:
            self._cancel(key, frame.reason)
        elif self._kept.lost(job, time.monotonic(), at_once=True):
            link.post(Done(job.id, job.usage(), LEFT, attempt=job.attempt))
            self._tell_orphans()
        else:
            self._cancel(key, GATEWAY_LOST)

    def _tell_orphans(self) -> None:
        """Tell gateways of answers that they may adopt; end what was kept for long enough."""
        news = self._kept.news(time.monotonic())
        for job in news.expired:
            self._cancel(job.key, GATEWAY_LOST)
        if news.orphans or news.gone:
            self._links.post(wire.OrphanList(news.orphans, news.gone))
        if not self._kept:
            self._no_orphans.set()
        else:
            self._no_orphans.clear()

    async def _probe(self, job: Job, frame: Load) -> Loaded:
        structlog.contextvars.bind_contextvars(request_id=job.id)
        async with self._admission.turn(
            job, QueuedRequest(job.key, "", frame.adapter.digest)
        ) as adapter:
            assert adapter is not None
            resident = await self._residency.adapter(frame.adapter, "")
            probed = asdict(await self._engine.probe(adapter)) if frame.probe else {}
            return Loaded(job.id, probed | asdict(resident.report))

    # --- accounts --------------------------------------------------------------------------------

    def _tick(self) -> None:
        for job in self._jobs.values():
            self._tell(job)
            self._admission.charge(job)
        self._warm.hear(self._engine.cache_news() or ())
        self._tell_orphans()
        self._admission.admit()  # patience runs out without any other event
        with suppress(EngineFailed):  # `run` sees that it failed
            self.sending()  # with no link open, only this writes the journal
        self._report_usage()

    def _report_usage(self) -> None:
        for link in self._links:
            while link.open and (report := self._billing.report(link.url, time.monotonic())):
                link.post(report)

    def _note_billed(self) -> None:
        """Let a drain end if all is in a ledger, or no gateway is there to take it."""
        if self._billing.waiting and any(link.open for link in self._links):
            self._billed.clear()
        else:
            self._billed.set()

    # --- reports ---------------------------------------------------------------------------------

    def _report(self, times: ReportTimes) -> None:
        stats = self.stats()
        match times.due(stats, time.monotonic()):
            case LinkReport.WHOLE:
                self._publish()
                self._watch.check()
            case LinkReport.LOAD:
                self._links.post(wire.Stats(stats, between=True))

    def _publish(self) -> None:
        stats, gained, source = self.stats(), self._queue.gained(), self._links.source()
        for link in self._links:
            link.post(wire.Stats(stats, gained=gained, asks=link is source))
