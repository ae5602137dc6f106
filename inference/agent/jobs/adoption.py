"""Answers whose gateway is gone: other gateways are told of them, and adopt them.

`kept_answers` has the rules; this carries them out on the jobs and the links.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import structlog

from inference.agent.job import CANCELLED, reason_of
from inference.agent.jobs.jobs import GATEWAY_LOST, Jobs
from inference.agent.jobs.kept_answers import KeptAnswers
from inference.agent.jobs.progress import Progress
from inference.agent.journal.billing import Billing
from inference.agent.link import AgentLink
from inference.agent.links import Links
from inference.link.accounts import Usage
from inference.link.wire import (
    GONE,
    LEFT,
    MOVED,
    RECALLED,
    Adopt,
    Cancel,
    Done,
    OrphanList,
)

log = structlog.get_logger(__name__)


class Adoption:
    """The orphans of one agent."""

    def __init__(
        self, jobs: Jobs, kept: KeptAnswers, links: Links, *, billing: Billing, progress: Progress
    ) -> None:
        self._jobs, self._kept, self._links = jobs, kept, links
        self._billing, self._progress = billing, progress
        self.no_orphans = asyncio.Event()
        """Set while no answer is without a gateway."""
        self.no_orphans.set()

    def adopt(self, frame: Adopt, link: AgentLink) -> None:
        """A gateway adopts an answer whose own gateway is gone."""
        kept = self._kept.adopt((frame.id, frame.of))
        if kept is None:
            link.post(Done(frame.id, Usage(), GONE, attempt=frame.attempt))
            return
        job, now = kept.job, time.monotonic()
        job.link = link
        log.info("answer_adopted", request_id=job.id, gateway=link.url, attempt=frame.attempt)
        if (done := kept.done) is None:
            self._billing.adopted(job, frame.attempt, frame.account, now)
            self._jobs.adopted(job, frame.of)
        else:
            ended = done.usage, reason_of(done, CANCELLED)
            self._billing.adopted_ended(job, frame.attempt, frame.account, ended, now)
        if kept.text:
            link.add(kept.text.delta(job.id, job.attempt))
        if done is not None:
            link.post(msgspec.structs.replace(done, attempt=job.attempt))
        elif frame.watched:
            self._progress.add(job)
            self._progress.moved(job)
        self.report()

    def cancel(self, frame: Cancel, link: AgentLink) -> None:
        """A gateway cancels a request, leaves it for another gateway to adopt, or takes it back."""
        job = self._jobs.of_attempt(frame.id, frame.attempt)
        if frame.reason == RECALLED:
            if job is None or not job.movable:
                return
            if job.admitted_at is None or job.request.prefill:  # a prefill has no reader yet
                self._jobs.cancel(job, MOVED)
        elif job is None:
            self._kept.cancel((frame.id, frame.attempt))
        elif frame.reason != LEFT or job.link is not link:
            self._jobs.cancel(job, frame.reason)
        elif self._kept.lost(job, time.monotonic(), at_once=True):
            link.post(Done(job.id, job.usage(), LEFT, attempt=job.attempt))
            self.report()
        else:
            self._jobs.cancel(job, GATEWAY_LOST)

    def lost(self, link: AgentLink) -> None:
        """The gateway is gone, or could not be dialled: its requests end, unless another gateway
        may adopt them."""
        now = time.monotonic()
        self._kept.not_dialled(link.url, now)
        for job in self._jobs:
            if job.link is link and not self._kept.lost(job, now):
                job.link = None
                self._jobs.cancel(job, GATEWAY_LOST)
        self._kept.left_behind(link.url, now)

    def report(self) -> None:
        """Tell gateways of answers that they may adopt; end what was kept for long enough."""
        news = self._kept.news(time.monotonic())
        for job in news.expired:
            self._jobs.cancel(job, GATEWAY_LOST)
        if news.orphans or news.withdrawn:
            self._links.post(OrphanList(news.orphans, news.withdrawn))
        if not self._kept:
            self.no_orphans.set()
        else:
            self.no_orphans.clear()
