"""Progress reports for watched requests, until their first token.

A change of phase is reported at once, a change of queue position once a second (`look`). Unwatched
requests are not tracked here.
"""

from __future__ import annotations

from inference.agent.job import Job
from inference.agent.scheduler.queue import Queue
from inference.link.wire import Wait


class Progress:
    """The watched requests of one agent."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._jobs: dict[str, Job] = {}
        self._reported: dict[str, Wait] = {}

    def add(self, job: Job) -> None:
        """Report this request; call `moved` whenever its phase may have changed."""
        self._jobs[job.key] = job

    def discard(self, job: Job) -> None:
        """Stop reporting this request."""
        self._jobs.pop(job.key, None)
        self._reported.pop(job.key, None)

    def moved(self, job: Job) -> None:
        """Report the request's phase if it changed; positions of others are left to `look`."""
        if job.key in self._jobs:
            self._tell([job])

    def check(self) -> None:
        """Report every phase and queue position that changed."""
        if self._jobs:
            self._tell(list(self._jobs.values()))

    def _tell(self, jobs: list[Job]) -> None:
        positions = self._queue.positions(job.key for job in jobs if job.phase == "queued")
        for job in jobs:
            wait = Wait(job.id, job.phase, positions.get(job.key, 0), job.attempt)
            if job.phase == "generating":
                self.discard(job)
            elif job.phase == "queued" and not wait.place:
                pass  # just admitted; its task has not run yet
            elif wait != self._reported.get(job.key) and job.link is not None:
                self._reported[job.key] = wait
                job.link.note(wait)
