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
from contextlib import suppress
from typing import Any

from inference.agent.adapters.residency import Residency, ResidencyStore
from inference.agent.engines.engine import Engine
from inference.agent.failures import DIED, HUNG, EngineFailures
from inference.agent.job import Job
from inference.agent.jobs.admission import Admission
from inference.agent.jobs.adoption import Adoption
from inference.agent.jobs.generation import Generation
from inference.agent.jobs.jobs import Jobs
from inference.agent.jobs.kept_answers import KEPT_BYTES, KeptAnswers
from inference.agent.jobs.progress import Progress
from inference.agent.journal.billing import Billing
from inference.agent.journal.journal import Journal
from inference.agent.link import AgentLink
from inference.agent.links import Links
from inference.agent.reports import EngineReports
from inference.agent.scheduler.queue import Queue
from inference.agent.scheduler.slots import Slots
from inference.agent.warm_prefixes import PrefixChange, WarmPrefixes
from inference.agent.watchdog import until_hung
from inference.errors import EngineFailed
from inference.link import wire
from inference.link.wire import Fault, Frame, Load
from inference.operations.registry import OPERATIONS, OperationRegistry
from inference.tracing import Tracer

TICK_S = 0.1
"""How often tenants are charged, usage is reported, and answers that don't stream report progress;
also the precision of the times at which the engine's state is reported."""

FAREWELL_S = 2.0
"""How long to wait while the gateways are told that the engine failed, or stops."""


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
        self._engine, self._hung_after_s = engine, hung_after_s
        self._failures = failures or EngineFailures()
        self._billing = Billing(journal, max_unbilled=max_unbilled)
        self._slots = Slots(active=engine.info.max_loras, resident=max_resident)
        self._queue = Queue(
            self._slots,
            max_running=max_running,
            kv_tokens=engine.info.kv_tokens,
            step_tokens=engine.step_tokens,
            **queue,
        )
        self._kept = KeptAnswers(kept_bytes)
        self._warm = WarmPrefixes()
        self._reports_warmth = engine.cache_news() is not None
        self._links = Links(self, id, credential)
        self._residency = Residency(engine, store, self._slots, lambda: self.reports.publish())
        progress = Progress(self._queue)
        self._admission = Admission(
            self._queue,
            failures=self._failures,
            store=store,
            residency=self._residency,
            progress=progress,
        )
        self._generation = Generation(
            engine,
            self._admission,
            operations=operations,
            billing=self._billing,
            failures=self._failures,
            kept=self._kept,
            progress=progress,
            residency=self._residency,
            warm=self._warm,
        )
        self._jobs = Jobs(
            engine,
            self._generation,
            self._links,
            admission=self._admission,
            billing=self._billing,
            failures=self._failures,
            kept=self._kept,
            operations=operations,
            progress=progress,
            residency=self._residency,
            tracer=tracer,
        )
        self._adoption = Adoption(
            self._jobs, self._kept, self._links, billing=self._billing, progress=progress
        )
        self.reports = EngineReports(
            engine,
            self._jobs,
            self._links,
            billing=self._billing,
            failures=self._failures,
            progress=progress,
            queue=self._queue,
            residency=self._residency,
            slots=self._slots,
            warm=self._warm,
        )
        self._billed = asyncio.Event()
        self.joined = asyncio.Event()
        """Set once a gateway has welcomed it."""

    # --- life ------------------------------------------------------------------------------------

    async def run(self, gateways: Iterable[str]) -> None:
        """Serve the gateways (base URLs, and every other that they name) until the engine dies or
        hangs, or the journal cannot be written: what can't be billed isn't generated."""
        self._links.start(gateways)
        watch = until_hung(self._engine, self._hung_after_s, self._jobs.is_busy)
        hung = asyncio.create_task(watch)
        try:
            while self._engine.alive and not self._billing.failed and not hung.done():
                await asyncio.sleep(TICK_S)
                self._tick()
                self.reports.send_due()
            if not self._billing.failed:
                self._jobs.engine_failed(HUNG if self._engine.alive else DIED)
                await self._report_failure()
        finally:
            self._failures.over = True
            hung.cancel()
            self._links.cancel()

    async def _report_failure(self) -> None:
        """Tell every gateway why the agent ends, after the final frames of the requests that failed
        with the engine."""
        error = EngineFailed(f"The engine {self._failures.how} and is being restarted.")
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                if self._failures.how == DIED:
                    await self._jobs.idle.wait()
                self._links.post(wire.Error(Fault.of(error)))
                await self._links.flushed()

    async def drain(self, timeout_s: float) -> None:
        """Take no new work, tell every gateway so, and finish what runs. What is left after
        `timeout_s` moves to other engines, if its gateway can have it moved."""
        self._refuse_new()
        try:
            async with asyncio.timeout(timeout_s):
                await self._jobs.idle.wait()
                await self._adoption.no_orphans.wait()  # gateways may still adopt what is kept
                await self._settled()
        except TimeoutError:
            await self._move()

    async def _move(self) -> None:
        """Give up what other engines can continue, and say so; end what has no gateway."""
        ending = self._jobs.give_up()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await asyncio.gather(*ending, return_exceptions=True)
                await self._settled()

    async def _settled(self) -> None:
        """Wait until what has ended is in a ledger, and all frames have been sent."""
        self._note_billed()
        await self._billed.wait()
        await self._links.flushed()

    def _refuse_new(self) -> None:
        self._admission.close()
        self._links.drain()

    # --- what links ask (link.LinkOwner) ----------------------------------------------------------

    def hello(self) -> wire.Hello:
        """The first frame to a gateway."""
        return wire.Hello(
            wire.OLDEST_VERSION,
            wire.PROTOCOL_VERSION,
            self.id,
            self._engine.info,
            self.reports.stats(),
            self._failures.run_id,
            self._warm.all() if self._reports_warmth else None,
        )

    def warmed_since(self, mark: int) -> PrefixChange:
        """What the engine's prefix cache stored and removed after this mark."""
        return self._warm.since(mark)

    def handle(self, link: AgentLink, frame: Frame) -> None:
        """Act on a gateway's frame."""
        match frame:
            case wire.Submit() | Load():
                self._jobs.begin(Job.of(frame, link), frame)
            case wire.Adopt() | wire.Cancel():
                self._handle_job_frame(frame, link)
            case wire.UsageAck(attempts=attempts):
                self._billing.acknowledged(attempts, link.url)
                self._note_billed()
            case wire.Others() | wire.SuspectList():
                self._handle_relayed(frame, link)
            case wire.PinnedAdapters(adapters=refs):
                self._residency.pin(refs, link.url)
            case wire.Unload(digest=digest):
                self._residency.retire(digest)
            case wire.Welcome():
                self._welcomed(link, frame)
            case wire.Gateways(gateways=gateways):
                self._links.follow(gateways)
            case wire.Drain():  # asked for by an operator; the agent tells the other gateways
                self._refuse_new()

    def _handle_job_frame(self, frame: wire.Adopt | wire.Cancel, link: AgentLink) -> None:
        """Act on a gateway's frame about a request that is here."""
        if isinstance(frame, wire.Adopt):
            self._adoption.adopt(frame, link)
        else:
            self._adoption.cancel(frame, link)

    def _handle_relayed(self, frame: wire.Others | wire.SuspectList, link: AgentLink) -> None:
        """Act on what gateways pass on from other engines' agents."""
        if isinstance(frame, wire.SuspectList):
            self._failures.merge(frame.suspects)
        else:
            link.engine_count = frame.engines
            self._queue.served_elsewhere(frame.served)

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
        self._billing.link_down(link.url)
        self._note_billed()
        self._adoption.lost(link)

    def sending(self) -> None:
        """Write the journal before anything that follows from it is sent.

        Raises:
            EngineFailed: it cannot be written; nothing may be sent, and the agent stops.
        """
        self._billing.write()

    # --- accounts --------------------------------------------------------------------------------

    def _tick(self) -> None:
        for job in self._jobs:
            self._generation.send_gains(job)
            self._admission.charge(job)
        self._warm.update(self._engine.cache_news() or ())
        self._adoption.report()
        self._admission.admit()  # patience runs out without any other event
        with suppress(EngineFailed):  # `run` sees that it failed
            self._billing.write()  # with no link open, only this writes the journal
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
