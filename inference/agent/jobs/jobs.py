"""All jobs of one agent: each is a task, from its gateway's frame to the final frame back to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import msgspec
import structlog

from inference.agent.adapters.residency import Residency
from inference.agent.engines.engine import Engine, key_of
from inference.agent.failures import DIED, EngineFailures
from inference.agent.job import CANCELLED, Job, fault_of, reason_of
from inference.agent.jobs.admission import Admission
from inference.agent.jobs.generation import Generation
from inference.agent.jobs.kept_answers import KeptAnswers
from inference.agent.jobs.progress import Progress
from inference.agent.journal.billing import Billing
from inference.agent.links import Links
from inference.errors import InferenceError
from inference.link.engine_info import Suspect
from inference.link.wire import MOVED, Done, Load, Loaded, Submit, SuspectList
from inference.operations.registry import OperationRegistry
from inference.tracing import Attributes, Tracer

log = structlog.get_logger(__name__)

GATEWAY_LOST = "gateway_lost"
"""The finish reason of a request whose gateway is gone and that no other gateway adopted."""

Task = asyncio.Task[Done | Loaded]
"""Runs a job; its result is the job's final frame."""


class Jobs:
    """Begins jobs, cancels them, and frees what they held when they end."""

    def __init__(
        self,
        engine: Engine,
        generation: Generation,
        links: Links,
        *,
        admission: Admission,
        billing: Billing,
        failures: EngineFailures,
        kept: KeptAnswers,
        operations: OperationRegistry,
        progress: Progress,
        residency: Residency,
        tracer: Tracer | None,
    ) -> None:
        self._engine, self._generation, self._links = engine, generation, links
        self._admission, self._billing, self._failures = admission, billing, failures
        self._kept, self._progress, self._residency = kept, progress, residency
        self._operations, self._tracer = operations, tracer
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, Task] = {}
        self._adopted: dict[str, str] = {}
        """Keys of adopted jobs, by the keys of their current attempts."""
        self.idle = asyncio.Event()
        """Set while there are none."""
        self.idle.set()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def of_attempt(self, id: str, attempt: int) -> Job | None:
        """The job whose current attempt this is."""
        key = key_of(id, attempt)
        job = self._jobs.get(self._adopted.get(key, key))
        return None if job is None or job.attempt != attempt else job

    def is_busy(self) -> bool:
        """Whether the engine has something to do."""
        return any(job.admitted_at is not None for job in self._jobs.values())

    def begin(self, job: Job, frame: Submit | Load) -> None:
        """Run the job that this frame asks for."""
        self._jobs[job.key] = job
        if job.request.retention.grace_s > 0:
            self._kept.begin(job, job.request.resume)
        self.idle.clear()
        run = self._generation
        work = run.probe(job, frame) if isinstance(frame, Load) else run.generate(job)
        task: Task = asyncio.create_task(work, name=job.key)
        self._tasks[job.key] = task
        if job.request.watched:
            self._progress.add(job)
        task.add_done_callback(lambda ended: self._end(job, ended))

    def adopted(self, job: Job, before: int) -> None:
        """Another gateway adopted the job, whose attempt was `before`."""
        self._adopted.pop(key_of(job.id, before), None)
        self._adopted[key_of(job.id, job.attempt)] = job.key

    def cancel(self, job: Job, reason: str) -> None:
        """End the job, for this reason."""
        if task := self._tasks.get(job.key):  # else it ended while the cancel was on its way
            job.cancel_reason = reason
            task.cancel()

    def give_up(self) -> list[Task]:
        """Give up what other engines can continue, and end what has no gateway. Returns the tasks
        that end now."""
        moving = [job for job in self if job.movable]
        log.warning("drain_cut_short", requests=len(self), moving=len(moving))
        for job in moving:
            self.cancel(job, MOVED)
        orphans = [job for job in self if job.link is None]
        for job in orphans:
            self.cancel(job, GATEWAY_LOST)
        return [self._tasks[job.key] for job in (*moving, *orphans)]

    def engine_failed(self, how: str) -> None:
        """Remember what ran, and tell the gateways before their clients can try again."""
        if self._failures.how or self._failures.over:
            return
        ran = [job for job in self if job.digest and job.submitted_at is not None]
        self._report(self._failures.note(how, ran))
        log.error("engine_failed", how=how, requests=[job.id for job in ran])

    def _report(self, suspects: list[Suspect]) -> None:
        if suspects:
            self._links.post(SuspectList(suspects))

    def _end(self, job: Job, task: Task) -> None:
        """However a job ended, even before it began: free what it holds, send its final frame."""
        if not self._engine.alive:
            self.engine_failed(DIED)
        del self._jobs[job.key], self._tasks[job.key]
        self._adopted.pop(key_of(job.id, job.attempt), None)
        self._admission.end(job)
        self._residency.released()
        word = self._final_frame(job, task)
        if self._tracer is not None and job.request.trace:
            self._note_parts(job, self._tracer)
        if isinstance(word, Done):
            reason = reason_of(word, job.cancel_reason)
            if word.fault is None and word.finish_reason not in (CANCELLED, MOVED):
                self._report(self._failures.ended_well(job))
            self._billing.close(job, word.usage, reason, time.monotonic())
            self._kept.ended(job, word, time.monotonic())
        if job.link is not None:
            job.link.post(word)
        if not self._jobs:
            self.idle.set()

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
