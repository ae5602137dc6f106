"""The task that writes the ledger in batches, and acknowledges entries to engines after the commit.

An engine keeps an entry until then, so anything that is lost in between is sent again; `statements`
explains how it is still billed only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import psycopg
import structlog
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from inference.interfaces.ledger import Source, Written
from inference.link.accounts import LedgerEntry
from inference.link.engine_info import EngineStats
from inference.link.session import AttemptKey
from inference.process.supervision import supervised
from tenants.billing.journals import JournalReport, Journals
from tenants.billing.lines import REFUSED, Connection, StatementLine
from tenants.billing.quarantine import NOT_BILLABLE, SuspectEntry, keep
from tenants.billing.statements import write, write_reports
from tenants.database import conninfo

log = structlog.get_logger(__name__)
T = TypeVar("T")
R = TypeVar("R")
Connect = Callable[[], Awaitable[Connection]]
Listener = Callable[[Sequence[StatementLine]], object]

LINGER_S = 0.1
"""How long entries wait for others to share their transaction."""
BATCH = 1_000
"""About how many entries one statement writes: encoding them blocks the event loop for 1 ms."""
CAPACITY = 100_000
"""Entries kept in memory while PostgreSQL is down, about 100 MB; engines keep those beyond it."""
REPORT_S = 5.0
"""Time between two reports of the engines' own counts."""
CONNECT_S = 5
ANSWER_S = 30.0
"""Timeout of a write, after which its connection is closed."""
MAX_BACKOFF_S = 5.0
LAST_S = 3.0
"""Timeout of the last write at exit; engines send the rest to another gateway."""
TOO_LONG = (TimeoutError, psycopg.errors.QueryCanceled)
"""A statement that took over ANSWER_S or the database's own `statement_timeout`."""


async def connect() -> Connection:
    """A connection to Django's default database."""
    info = make_conninfo(conninfo("lorikeet-ledger"), connect_timeout=CONNECT_S)
    return await AsyncConnection.connect(info, autocommit=True)


class _Call(NamedTuple):
    """The arguments of one call of `record` or `quarantine`."""

    lines: list[StatementLine]
    suspects: list[SuspectEntry]
    written: Written

    @property
    def entries(self) -> int:
        return len(self.lines) + len(self.suspects)


class Ledger:
    """`interfaces.ledger.Recorder`. Use as an async context manager, which writes the rest on exit.

    One task with one connection writes one batch at a time. A failed write is retried with back-off
    for as long as it takes, unless the database will never accept an entry: that is logged as
    `usage_not_billable` with all its fields, and quarantined. A quarantined entry counts as
    written, because the engine would otherwise send it for ever.
    """

    def __init__(
        self,
        connect: Connect = connect,
        *,
        capacity: int = CAPACITY,
        linger_s: float = LINGER_S,
        report_s: float = REPORT_S,
        last_s: float = LAST_S,
    ) -> None:
        self._connect = connect
        self._capacity = capacity
        self._linger_s, self._report_s, self._last_s = linger_s, report_s, last_s
        self._calls: deque[_Call] = deque()
        self._journals = Journals()
        self._report_at = 0.0
        self._connection: Connection | None = None
        self._needed, self._full = asyncio.Event(), asyncio.Event()
        self._closing = asyncio.Event()
        self.waiting = 0
        """Entries in memory."""
        self.written = 0
        """Entries that were acknowledged to engines."""
        self.unbillable = 0
        """Entries that were quarantined because the database refused them."""
        self.turned_away = 0
        """Entries that arrived while `capacity` was exhausted; their engines send them again."""
        self.regenerated_tokens = 0
        """Tokens that lost engines had generated beyond what their clients were sent, in entries
        that were written here."""
        self._turning_away = False
        self._listeners: list[Listener] = []

    def on_written(self, listener: Listener) -> None:
        """Call `listener` with each batch once it is committed, from the event loop: be quick.

        The batch includes entries that an engine sent again, and those that are not billable.
        """
        self._listeners.append(listener)

    def record(
        self, engine_id: str, journal: str, entries: Sequence[LedgerEntry], written: Written
    ) -> None:
        """Write the entries and then call `written`; returns at once, never blocks, never raises.

        If the capacity is exhausted they are turned away, and `written` is never called.
        """
        if self.waiting >= self._capacity:
            self._turn_away(len(entries))
            return
        self._take(_Call([StatementLine(engine_id, journal, e) for e in entries], [], written))

    def quarantine(
        self, source: Source, suspects: Sequence[tuple[LedgerEntry, str]], written: Written
    ) -> None:
        """Keep entries that are not to be billed, in the way that `record` writes others. While too
        many of the same engine await a decision, `written` is not called with further ones."""
        if self.waiting >= self._capacity:
            self._turn_away(len(suspects))
            return
        kept = [SuspectEntry(source, entry, str(reason)) for entry, reason in suspects]
        self._take(_Call([], kept, written))

    def _take(self, call: _Call) -> None:
        self._calls.append(call)
        self.waiting += call.entries
        self._needed.set()
        if self.waiting >= BATCH:
            self._full.set()

    def _turn_away(self, entries: int) -> None:
        self.turned_away += entries
        if not self._turning_away:
            log.warning("ledger_full", waiting=self.waiting)
        self._turning_away = True

    def totals(self, engine_id: str, stats: EngineStats) -> None:
        """Note what the engine's journal counts, for reconciliation. Returns at once."""
        self._journals.note(engine_id, stats, time.monotonic())
        self._needed.set()

    async def __aenter__(self) -> Ledger:
        self._task = asyncio.create_task(
            supervised("ledger", self._run, may_return=True), name="ledger"
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for event in (self._closing, self._full, self._needed):
            event.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._last_s):
                await self._task
        await self._disconnect()
        if self.waiting:
            log.warning("ledger_left_to_engines", entries=self.waiting)

    async def _run(self) -> None:
        while self._calls or not self._closing.is_set():
            await self._until_needed()
            if self._calls:
                await self._write_batch()
            if time.monotonic() >= self._report_at:
                await self._write_reports()
        await self._write_reports()

    async def _until_needed(self) -> None:
        if not self._calls:
            due_s = max(0.0, self._report_at - time.monotonic()) if self._journals else None
            await _first_of(self._needed, due_s)
        self._needed.clear()
        if 0 < self.waiting < BATCH and not self._closing.is_set():
            self._full.clear()
            await _first_of(self._full, self._linger_s)

    async def _write_batch(self) -> None:
        batch = list(self._some_calls())
        lines = [line for call in batch for line in call.lines]
        refused: list[SuspectEntry] = []
        if lines:
            regenerated = await self._write_all(lines, write, partial(self._not_billable, refused))
            self.regenerated_tokens += sum(regenerated)
        kept = await self._keep([one for call in batch for one in call.suspects] + refused)
        not_kept = {suspect.attempt for suspect in refused} - kept
        self._turning_away = False
        for call in batch:
            self._calls.popleft()
            self.waiting -= call.entries
            done = [(line.entry.id, line.entry.attempt) for line in call.lines]
            done = [attempt for attempt in done if attempt not in not_kept]
            done += [one.attempt for one in call.suspects if one.attempt in kept]
            self.written += len(done)
            self._tell(call.written, done)
        if lines:
            for listener in self._listeners:
                self._tell(listener, lines)

    async def _keep(self, suspects: Sequence[SuspectEntry]) -> set[AttemptKey]:
        """Quarantine the suspects. Returns the attempts of those that are kept."""
        if not suspects:
            return set()
        found = await self._write_all(suspects, keep, self._not_kept)
        return {attempt for some in found for attempt in some}

    def _some_calls(self) -> Iterator[_Call]:
        """The oldest calls, up to about BATCH entries."""
        entries = 0
        for call in self._calls:
            yield call
            entries += call.entries
            if entries >= BATCH:
                return

    @staticmethod
    def _tell(listener: Callable[[T], object], news: T) -> None:
        try:
            listener(news)
        except Exception:  # the listener's fault; the others must still be called
            log.exception("ledger_callback_failed")

    async def _write_reports(self) -> None:
        self._report_at = time.monotonic() + self._report_s
        if self._journals:
            found = await self._write_all(self._journals.take(), write_reports, self._not_reported)
            self._journals.written([one for some in found for one in some], time.monotonic())

    def _not_billable(
        self, refused: list[SuspectEntry], line: StatementLine, error: Exception
    ) -> None:
        self.unbillable += 1
        dispatch = line.entry.account.dispatch
        source = Source(line.engine_id, dispatch.credential if dispatch else 0, line.journal)
        refused.append(SuspectEntry(source, line.entry, NOT_BILLABLE, _message(error)))
        fields = {"engine_id": line.engine_id, "journal": line.journal}
        fields |= msgspec.structs.asdict(line.entry)
        log.error("usage_not_billable", reason=_message(error), **fields)

    def _not_kept(self, suspect: SuspectEntry, error: Exception) -> None:
        log.error("usage_not_quarantined", reason=_message(error), attempt=suspect.attempt)

    def _not_reported(self, report: JournalReport, error: Exception) -> None:
        log.error("journal_not_reported", reason=_message(error), **msgspec.structs.asdict(report))

    async def _write_all(
        self,
        rows: Sequence[T],
        write: Callable[[Connection, Sequence[T]], Awaitable[R]],
        refuse: Callable[[T, Exception], None],
    ) -> list[R]:
        """Write all rows. A part that is refused or takes too long is halved and tried again;
        single rows that still fail are passed to `refuse`."""
        done, parts = [], [rows]
        while parts:
            part = parts.pop()
            try:
                done.append(await self._write_at_last(part, write))
            except (*REFUSED, *TOO_LONG) as error:
                if len(part) == 1:
                    refuse(part[0], error)
                else:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
        return done

    async def _write_at_last(
        self, rows: Sequence[T], write: Callable[[Connection, Sequence[T]], Awaitable[R]]
    ) -> R:
        """Retry until the rows are written or refused, however long the database is down.

        Raises:
            REFUSED, or TOO_LONG if there is more than one row, so that fewer can be tried.
        """
        failures = 0
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    done = await write(await self._connected(), rows)
            except REFUSED:
                raise
            except Exception as error:  # whatever it is, the engines keep what is not written
                failures += 1
                if failures == 1:
                    log.error("ledger_not_written", waiting=self.waiting, reason=_message(error))
                await self._disconnect()
                await self._pause(failures)
                if isinstance(error, TOO_LONG) and len(rows) > 1:
                    raise
            else:
                if failures:
                    log.info("ledger_written_again", waiting=self.waiting, failures=failures)
                return done

    async def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = await self._connect()
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _pause(self, failures: int) -> None:
        pause_s = min(MAX_BACKOFF_S, 0.05 * 2.0 ** min(failures, 10))
        if self._closing.is_set():
            await asyncio.sleep(pause_s)
        else:
            await _first_of(self._closing, pause_s)


async def _first_of(event: asyncio.Event, timeout_s: float | None) -> None:
    # Not wait_for: Python 3.11's loses a cancellation if the event is set at the same moment.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _message(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
