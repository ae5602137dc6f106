"""What gateways are told of the engine's state: its statistics, with what only the agent knows."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from inference.agent.adapters.residency import Residency
from inference.agent.engines.engine import Engine
from inference.agent.failures import EngineFailures
from inference.agent.jobs.jobs import Jobs
from inference.agent.jobs.progress import Progress
from inference.agent.journal.billing import Billing
from inference.agent.links import Links
from inference.agent.report_times import LinkReport, ReportTimes
from inference.agent.scheduler.queue import Queue
from inference.agent.scheduler.slots import Slots
from inference.agent.warm_prefixes import WarmPrefixes
from inference.link.engine_info import EngineStats
from inference.link.wire import INTERACTIVE, Stats

NEWCOMER = ""
"""A tenant that has no requests."""
MAX_AWAITED = 64
"""Adapters reported as having requests that wait for them, at most."""


class EngineReports:
    """The reports of one engine."""

    def __init__(
        self,
        engine: Engine,
        jobs: Jobs,
        links: Links,
        *,
        billing: Billing,
        failures: EngineFailures,
        progress: Progress,
        queue: Queue,
        residency: Residency,
        slots: Slots,
        warm: WarmPrefixes,
    ) -> None:
        self._engine, self._jobs, self._links = engine, jobs, links
        self._billing, self._failures, self._queue = billing, failures, queue
        self._residency, self._slots, self._warm = residency, slots, warm
        self._progress = progress
        self._times = ReportTimes(engine.info.kv_tokens, time.monotonic())

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
            wait_s=self._queue.expected_wait_s(NEWCOMER, INTERACTIVE),
            **self._demand(),
        )

    def _demand(self) -> dict[str, Any]:
        """The fields of `EngineStats` that describe the requests that are here."""
        queued_tokens, active, awaited = 0, dict[str, None](), dict[str, None]()
        for job in self._jobs:
            if job.first_token_at is None:
                tokens, prefix = job.request.workload.prompt_tokens, job.request.prefix
                queued_tokens += tokens
                if prefix is not None:
                    queued_tokens -= self._warm.held_tokens(prefix, tokens)
            if (adapter := job.request.adapter) is not None:
                (awaited if job.admitted_at is None else active)[adapter.name] = None
        waiting = [name for name in awaited if name not in active][:MAX_AWAITED]
        return {"queued_tokens": queued_tokens, "active": list(active), "awaited": waiting}

    def send_due(self) -> None:
        """Send every gateway the report that is due, if one is."""
        stats = self.stats()
        match self._times.due(stats, time.monotonic()):
            case LinkReport.WHOLE:
                self.publish()
                self._progress.check()
            case LinkReport.LOAD:
                self._links.post(Stats(stats, between=True))

    def publish(self) -> None:
        """Send every gateway a whole report."""
        stats, gained, source = self.stats(), self._queue.gained(), self._links.source()
        for link in self._links:
            link.post(Stats(stats, gained=gained, asks=link is source))
