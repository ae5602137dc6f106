"""What a job does on the engine: it generates an answer, or probes an adapter."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import asdict

import structlog
from msgspec.structs import replace

from inference.agent.adapters.residency import Residency
from inference.agent.engines.engine import Engine, EngineOutput, EngineWork, LocalAdapter
from inference.agent.failures import EngineFailures
from inference.agent.job import Job
from inference.agent.jobs.admission import Admission
from inference.agent.jobs.kept_answers import KeptAnswers
from inference.agent.jobs.progress import Progress
from inference.agent.journal.billing import Billing
from inference.agent.outbox import too_long
from inference.agent.warm_prefixes import WarmPrefixes
from inference.link.wire import MOVED, Done, Load, Loaded
from inference.operations.operation import Operation
from inference.operations.registry import OperationRegistry


class Generation:
    """Runs jobs on one engine, and passes on what it generates."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        *,
        operations: OperationRegistry,
        billing: Billing,
        failures: EngineFailures,
        kept: KeptAnswers,
        progress: Progress,
        residency: Residency,
        warm: WarmPrefixes,
    ) -> None:
        self._engine, self._admission, self._operations = engine, admission, operations
        self._billing, self._failures, self._kept = billing, failures, kept
        self._progress, self._residency, self._warm = progress, residency, warm

    async def generate(self, job: Job) -> Done:
        """Generate the answer, once it is the job's turn."""
        structlog.contextvars.bind_contextvars(request_id=job.id)
        if self._admission.closed and job.movable:  # sent before its gateway heard of the drain
            return Done(job.id, job.usage(), MOVED)
        last, operation = EngineOutput(), self._operations.named(job.request.kind)
        await self._failures.recognise(job)
        at_once = self._engine.step_tokens if operation.pools else None
        timeout = asyncio.timeout(job.request.timeout_s)
        async with timeout, self._admission.turn(job, at_once=at_once) as adapter:
            work = self._begun(job, operation, adapter)
            async with aclosing(self._engine.generate(work)) as outputs:
                async for last in outputs:
                    self._pass_on(job, last)
        done = Done(job.id, job.usage(), last.finish_reason, last.response)
        return done if last.handover is None else replace(done, handover=last.handover)

    async def probe(self, job: Job, frame: Load) -> Loaded:
        """Load the adapter, and probe it if that is asked for, once it is the job's turn."""
        structlog.contextvars.bind_contextvars(request_id=job.id)
        async with self._admission.turn(job) as adapter:
            assert adapter is not None
            resident = await self._residency.adapter(frame.adapter, "")
            probed = asdict(await self._engine.probe(adapter, frame.rows)) if frame.probe else {}
            return Loaded(job.id, probed | asdict(resident.report))

    def _begun(self, job: Job, operation: Operation, adapter: LocalAdapter | None) -> EngineWork:
        """The job as work for the engine; it is in the journal then."""
        body, resume = job.take_body()
        request = job.request
        fields = operation.read(body, request.max_tokens)
        job.submitted_at = time.monotonic()
        self._progress.moved(job)
        self._billing.open(job)
        if request.prefix is not None:
            self._warm.expect(job.key, request.prefix)
        self._billing.write()  # journaled before it costs anything on the engine
        return EngineWork(
            id=job.id,
            operation=operation,
            body=fields,
            model=request.model,
            salt=request.salt,
            adapter=adapter,
            priority=self._admission.priority(job),
            created=int(request.account.started_at or time.time()),
            meter=job.meter,
            attempt=job.attempt,
            wants_ids=request.ids,
            resume=resume,
            prefill=request.prefill,
            handover=job.handover(job.submitted_at),
        )

    def _pass_on(self, job: Job, output: EngineOutput) -> None:
        if job.first_token_at is None:
            job.first_token_at = time.monotonic()
            self._admission.generating(job)
        self.send_gains(job, output)

    def send_gains(self, job: Job, output: EngineOutput | None = None) -> None:
        """Send the job's gateway this output, and what its meter counted since the last one."""
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
