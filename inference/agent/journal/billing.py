"""What requests cost, from the engine's meters through the journal to a gateway's ledger.

The order is what makes the bill exact: a token is journaled before it leaves for a gateway, and an
entry is forgotten only once a gateway has durably written it to the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from inference.agent.job import Job
from inference.agent.journal.delivery import EntryDelivery
from inference.agent.journal.files import JournalFailed
from inference.agent.journal.journal import Journal
from inference.errors import EngineFailed, Overloaded
from inference.link.accounts import Account, Totals, Usage
from inference.link.session import AttemptKey
from inference.link.wire import MOVED, UsageReport

log = structlog.get_logger(__name__)

RETRY_AFTER_S = 5.0


class Billing:
    """The journal of one engine, and the delivery of its entries to gateways."""

    def __init__(self, journal: Journal, *, max_unbilled: int) -> None:
        """New requests are refused while `max_unbilled` ended ones are in no ledger yet."""
        self.failed = False
        """Whether the journal could not be written: what can't be billed must not be generated."""
        self._journal, self._max_unbilled = journal, max_unbilled
        self._delivery = EntryDelivery(journal.unacknowledged())
        self._advanced: set[Job] = set()
        self._completion_tokens = 0
        """Generated here for requests that ended in this run."""
        self._open: set[Job] = set()

    @property
    def journal_id(self) -> str:
        return self._journal.id

    @property
    def waiting(self) -> int:
        """Ended requests that are in no ledger yet."""
        return self._journal.backlog

    @property
    def totals(self) -> tuple[Totals, Totals]:
        """Totals of all requests that ever ended, and of those that are in no ledger yet."""
        return self._journal.journaled, self._journal.unbilled

    @property
    def completion_tokens(self) -> int:
        """Output tokens that this engine generated in this run and that are journaled, as of the
        last `write`. Tokens that requests continued from were generated elsewhere, and are left
        out though they are part of those requests' figures."""
        return self._completion_tokens + sum(
            _generated(job, job.meter.completion_tokens) for job in self._open
        )

    def open(self, job: Job) -> None:
        """Journal the request's start; call before it costs anything.

        Raises:
            Overloaded: too many ended requests are in no ledger yet; nothing is journaled.
        """
        if self.waiting >= self._max_unbilled:
            raise Overloaded(
                f"The ledger is unavailable, and {self._max_unbilled} requests on this "
                "engine are waiting to be billed.",
                retry_after_s=RETRY_AFTER_S,
            )
        self._open_entry(job)

    def adopted(self, job: Job, attempt: int, account: Account, now: float) -> None:
        """Another gateway adopted the running request under a higher attempt: its current entry is
        closed, and one for the new attempt is opened that starts with all usage so far."""
        before, journaled = job.usage(), job.journaled
        if journaled:
            self.close(job, before, MOVED, now)
        job.attempt, job.account = attempt, account
        if journaled:
            job.opened = before
            self._open_entry(job)

    def adopted_ended(
        self, job: Job, attempt: int, account: Account, done: tuple[Usage, str], now: float
    ) -> None:
        """As `adopted`, for a request that has ended; `done` has its usage and finish reason."""
        usage, reason = done
        job.attempt, job.account, job.opened = attempt, account, usage
        if job.journaled:
            self._open_entry(job)
            self.close(job, usage, reason, now)

    def _open_entry(self, job: Job) -> None:
        self._journal.opened(_attempt(job), job.account, job.request.model, job.opened)
        job.journaled = True
        self._open.add(job)

    def advanced(self, job: Job) -> None:
        """The request's meter moved; the next `write` journals it."""
        if job.journaled:
            self._advanced.add(job)

    def write(self) -> None:
        """Journal all that happened, and every meter that moved; call before anything is sent.

        Raises:
            EngineFailed: it cannot be written; nothing may be sent, and the agent stops.
        """
        if self._advanced:
            moved, self._advanced = self._advanced, set()
            self._journal.progressed([(_attempt(job), job.meter) for job in moved])
        try:
            self._journal.write()
        except JournalFailed as error:
            log.error("journal_failed", error=str(error))
            self.failed = True
        if self.failed:
            raise EngineFailed("The engine's journal cannot be written.")

    def close(self, job: Job, usage: Usage, finish_reason: str, now: float) -> None:
        """The request ended, with these final figures."""
        self._advanced.discard(job)
        if not job.journaled:
            return
        self._open.discard(job)
        self._completion_tokens += _generated(job, usage.completion_tokens)
        entry = self._journal.closed(_attempt(job), usage, finish_reason)
        if entry is not None:
            self._delivery.add(entry, job.link.url if job.link else None, now)

    def link_up(self, url: str) -> None:
        """A gateway is connected."""
        self._delivery.link_up(url)

    def link_down(self, url: str) -> None:
        """A gateway is gone; entries that it did not acknowledge go to another."""
        self._delivery.link_down(url)

    def report(self, url: str, now: float) -> UsageReport | None:
        """The next entries that this gateway should write; None if there are none."""
        entries = self._delivery.take(url, now)
        return UsageReport(self._journal.id, entries) if entries else None

    def acknowledged(self, attempts: Iterable[AttemptKey], url: str) -> None:
        """This gateway has durably written these to the ledger."""
        known = list(attempts)
        self._journal.acknowledged(known)
        self._delivery.acknowledged(known, url)


def _generated(job: Job, tokens: int) -> int:
    return tokens - job.opened.completion_tokens


def _attempt(job: Job) -> AttemptKey:
    return job.id, job.attempt
