"""A job's way to the engine: it waits in the queue, then its adapter is loaded.

A job with an adapter counts as waiting while its files are fetched, which is before it is admitted,
so that a slow fetch holds no slot. A suspect waits until no other one runs (`failures`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inference.agent.adapters.residency import Residency, ResidencyStore
from inference.agent.engines.engine import LocalAdapter
from inference.agent.failures import EngineFailures
from inference.agent.job import Job
from inference.agent.jobs.progress import Progress
from inference.agent.scheduler.lane import QueuedRequest
from inference.agent.scheduler.queue import Queue
from inference.errors import Overloaded


class Admission:
    """Admits the jobs of one agent, in the order of its queue."""

    def __init__(
        self,
        queue: Queue,
        *,
        failures: EngineFailures,
        store: ResidencyStore,
        residency: Residency,
        progress: Progress,
    ) -> None:
        """The owner calls `end` for each job that ends."""
        self.closed = False
        """Whether no new jobs are taken."""
        self._queue, self._failures = queue, failures
        self._store, self._residency, self._progress = store, residency, progress
        self._turns: dict[str, asyncio.Future[None]] = {}
        """Done once the job is admitted; by its key."""

    def close(self) -> None:
        """Take no new jobs."""
        self.closed = True

    @asynccontextmanager
    async def turn(
        self, job: Job, *, at_once: int | None = None
    ) -> AsyncIterator[LocalAdapter | None]:
        """Hold sequences of the engine, with the job's adapter loaded there; `at_once` as in
        `QueuedRequest`.

        Raises:
            InferenceError: the job is refused, or its adapter can't be loaded.
        """
        if self.closed:
            raise Overloaded("The engine is shutting down.", retry_after_s=1)
        request = _queued(job, at_once)
        suspect, adapter = self._failures.is_suspect(job), job.request.adapter
        if suspect or adapter is not None:
            self._queue.expect(request)
            self._progress.moved(job)
        if suspect:
            await self._failures.try_alone(job)
        if adapter is None:
            await self._admitted(job, request)
            yield None
            return
        source = job.link.url if job.link else ""
        async with self._store.ahead(adapter, source):
            await self._admitted(job, request)
            async with self._store.pinned(adapter, source):
                yield (await self._residency.adapter(adapter, source)).adapter

    async def _admitted(self, job: Job, request: QueuedRequest) -> None:
        self._queue.push(request, time.monotonic())
        job.turn = self._turns[job.key] = asyncio.get_running_loop().create_future()
        job.queued_at = time.monotonic()
        self.admit()
        if not job.turn.done():
            self._progress.moved(job)
        await job.turn
        job.admitted_at = time.monotonic()
        self._progress.moved(job)

    def admit(self) -> None:
        """Admit every job that may start now."""
        for key in self._queue.admit(time.monotonic()):
            if not self._turns[key].done():
                self._turns[key].set_result(None)

    def priority(self, job: Job) -> int:
        """The job's priority in the engine's own queue."""
        return self._queue.priority(job.key)

    def generating(self, job: Job) -> None:
        """The job's first output came: the next prompt may be computed."""
        self._failures.end_trial(job)
        self.charge(job)
        self.admit()

    def charge(self, job: Job) -> None:
        """Charge the job's tenant what the job has used so far."""
        self._queue.progress(
            job.key,
            prompt_tokens=job.meter.prompt_tokens,
            cached_tokens=job.meter.cached_tokens,
            completion_tokens=job.meter.completion_tokens,
        )

    def end(self, job: Job) -> None:
        """The job has ended, whatever it was doing: others may start."""
        self._failures.end_trial(job)
        self._progress.discard(job)
        self._turns.pop(job.key, None)
        self.charge(job)
        self._queue.finish(job.key, time.monotonic())
        self.admit()


def _queued(job: Job, at_once: int | None) -> QueuedRequest:
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
        at_once=at_once,
        size=len(request.body),
    )
