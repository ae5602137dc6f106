"""Writes the ledger: events, their hourly sums and their journals' sums, in one statement.

Whatever is lost in between, a request is billed once: an event is inserted under the id and start
that its gateway gave it, or not at all if it is there; only what was inserted is added to the sums;
all of it is one statement, so one transaction; and the engine, which keeps the entry until then, is
told after the commit. A batch may therefore be tried again at any time, by any gateway. Triggers on
the hourly sums add them to their months, at the end of the statement.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
import psycopg
import structlog
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from inference.grants import Written
from inference.link.wire import EngineStats, LedgerEntry
from inference.supervision import supervised
from tenants.billing.journals import Journals, Report, Seen
from tenants.directory.notices import conninfo

log = structlog.get_logger(__name__)
T = TypeVar("T")
R = TypeVar("R")
Connection = AsyncConnection[tuple[Any, ...]]
Connect = Callable[[], Awaitable[Connection]]
Listener = Callable[[Sequence["Line"]], object]

LINGER_S = 0.1
"""How long entries wait for others to share their transaction."""
BATCH = 1_000
"""Entries in one statement, about: encoding it takes the event loop 1 ms."""
CAPACITY = 100_000
"""Entries in memory while PostgreSQL is away, about 100 MB; engines keep what is beyond it."""
REPORT_S = 5.0
"""Time between two looks at the engines' own counts."""
CONNECT_S = 5
ANSWER_S = 30.0
"""Longer than that and the connection is given up."""
MAX_BACKOFF_S = 5.0
LAST_S = 3.0
"""For a last try at exit; the engines send the rest to somebody else."""
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
"""Requests outside of these times are mistakes; each month has a table of its own."""

REFUSED = (
    psycopg.DataError,
    psycopg.errors.ForeignKeyViolation,
    psycopg.errors.CheckViolation,  # an operator has taken the table of its month away
    UnicodeEncodeError,
)
"""A row that is at fault itself. Any other error (a schema that this release does not know, say)
is not the row's: it waits."""
TOO_LONG = (TimeoutError, psycopg.errors.QueryCanceled)
"""A statement that took over ANSWER_S or the database's own `statement_timeout`."""

# One JSON array of [engine_id, journal, entry], the entry as on the wire: encoding it in C costs
# the event loop a tenth of what arrays for unnest() do. Fields on the wire never change places.
# NaN is null in JSON; a time that nobody measured is no reason not to bill.
_SENT = """
WITH sent AS (
    SELECT e->>0 AS engine_id, e->>1 AS journal, e->2->>0 AS id,
           (e->2->1->>0)::bigint AS tenant_id, (e->2->1->>1)::bigint AS key_id,
           to_timestamp((e->2->1->>2)::float8) AS started_at, e->2->1->>3 AS base_model,
           (e->2->1->>4)::bigint AS adapter_id, (e->2->1->>5)::bigint AS version_id,
           e->2->>2 AS model, (e->2->3->>0)::bigint AS prompt_tokens,
           (e->2->3->>1)::bigint AS cached_tokens, (e->2->3->>2)::bigint AS completion_tokens,
           (e->2->3->>3)::bigint AS reasoning_tokens,
           coalesce((e->2->3->>4)::float8, 0) AS queue_s,
           coalesce((e->2->3->>5)::float8, 0) AS load_s, (e->2->3->>6)::float8 AS ttft_s,
           coalesce((e->2->3->>7)::float8, 0) AS total_s, e->2->>4 AS finish_reason
    FROM jsonb_array_elements(%s) AS e
)"""

# All inserts take their rows in sorted order, and in the same order of tables: two gateways with
# overlapping batches wait for each other, in a line.
_WRITE = f"""{_SENT}, priced AS (
    SELECT sent.*, coalesce(price.prompt, 0) AS prompt_price,
           coalesce(price.cached_prompt, 0) AS cached_prompt_price,
           coalesce(price.output, 0) AS output_price
    FROM sent LEFT JOIN LATERAL (
        (SELECT 1 AS rank, prompt, cached_prompt, output
         FROM tenants_price
         WHERE adapter_id = sent.adapter_id AND starts_at <= sent.started_at
         ORDER BY starts_at DESC LIMIT 1)
        UNION ALL
        (SELECT 2, prompt, cached_prompt, output
         FROM tenants_price
         WHERE base_model_id = (SELECT id FROM tenants_basemodel WHERE name = sent.base_model)
           AND starts_at <= sent.started_at
         ORDER BY starts_at DESC LIMIT 1)
        ORDER BY rank LIMIT 1
    ) AS price ON true
), event AS (
    INSERT INTO tenants_usageevent AS made (
        id, started_at, tenant_id, key_id, version_id, adapter, model, base_model, engine_id,
        journal, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, prompt_price,
        cached_prompt_price, output_price, cost, finish_reason, queue_s, load_s, ttft_s, total_s)
    SELECT id, started_at, tenant_id, key_id, version_id,
           CASE WHEN model = base_model THEN '' ELSE split_part(model, '@', 1) END,
           model, base_model, engine_id, journal, prompt_tokens, cached_tokens, completion_tokens,
           reasoning_tokens, prompt_price, cached_prompt_price, output_price,
           (prompt_tokens - cached_tokens) * prompt_price + cached_tokens * cached_prompt_price
               + completion_tokens * output_price,
           finish_reason, queue_s, load_s, ttft_s, total_s
    FROM priced ORDER BY id
    ON CONFLICT DO NOTHING
    RETURNING made.*
), rollup AS (
    INSERT INTO tenants_usagerollup AS kept (
        tenant_id, hour, key_id, adapter, model, base_model, requests, prompt_tokens,
        cached_tokens, completion_tokens, reasoning_tokens, cost)
    SELECT tenant_id, date_trunc('hour', started_at, 'UTC'), key_id, adapter, model, base_model,
           count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
           sum(reasoning_tokens), sum(cost)
    FROM event GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (tenant_id, hour, key_id, adapter, model, base_model) DO UPDATE SET
        requests = kept.requests + excluded.requests,
        prompt_tokens = kept.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        completion_tokens = kept.completion_tokens + excluded.completion_tokens,
        reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
        cost = kept.cost + excluded.cost
)
INSERT INTO tenants_enginejournal AS kept (
    journal, engine_id, ledger_requests, ledger_prompt_tokens, ledger_cached_tokens,
    ledger_completion_tokens, counted_requests, counted_prompt_tokens, counted_cached_tokens,
    counted_completion_tokens, waiting_requests, unjournaled_tokens)
SELECT journal, max(engine_id), count(*), sum(prompt_tokens), sum(cached_tokens),
       sum(completion_tokens), 0, 0, 0, 0, 0, 0
FROM event GROUP BY journal ORDER BY journal
ON CONFLICT (journal) DO UPDATE SET
    engine_id = excluded.engine_id,
    ledger_requests = kept.ledger_requests + excluded.ledger_requests,
    ledger_prompt_tokens = kept.ledger_prompt_tokens + excluded.ledger_prompt_tokens,
    ledger_cached_tokens = kept.ledger_cached_tokens + excluded.ledger_cached_tokens,
    ledger_completion_tokens = kept.ledger_completion_tokens + excluded.ledger_completion_tokens
"""

_PARTITIONS = f"""{_SENT}
SELECT tenants_usage_partition(month)
FROM (SELECT DISTINCT date_trunc('month', started_at, 'UTC') AS month FROM sent) AS months
"""

_REPORT = """
INSERT INTO tenants_enginejournal AS kept (
    journal, engine_id, ledger_requests, ledger_prompt_tokens, ledger_cached_tokens,
    ledger_completion_tokens, counted_requests, counted_prompt_tokens, counted_cached_tokens,
    counted_completion_tokens, waiting_requests, unjournaled_tokens, surplus_requests,
    surplus_tokens, reported_at)
SELECT journal, engine_id, 0, 0, 0, 0, counted_requests, counted_prompt_tokens,
       counted_cached_tokens, counted_completion_tokens, waiting_requests, unjournaled_tokens,
       surplus_requests, surplus_tokens, now()
FROM jsonb_to_recordset(%s) AS said (
    journal text, engine_id text, counted_requests bigint, counted_prompt_tokens bigint,
    counted_cached_tokens bigint, counted_completion_tokens bigint, waiting_requests bigint,
    unjournaled_tokens bigint, surplus_requests bigint, surplus_tokens bigint)
ORDER BY journal
ON CONFLICT (journal) DO UPDATE SET
    engine_id = excluded.engine_id,
    counted_requests = excluded.counted_requests,
    counted_prompt_tokens = excluded.counted_prompt_tokens,
    counted_cached_tokens = excluded.counted_cached_tokens,
    counted_completion_tokens = excluded.counted_completion_tokens,
    waiting_requests = excluded.waiting_requests,
    unjournaled_tokens = excluded.unjournaled_tokens,
    surplus_requests = coalesce(excluded.surplus_requests, kept.surplus_requests),
    surplus_tokens = coalesce(excluded.surplus_tokens, kept.surplus_tokens),
    reported_at = excluded.reported_at
RETURNING journal, ledger_requests, ledger_prompt_tokens + ledger_completion_tokens
"""


class Line(NamedTuple):
    """An entry with the engine that sent it."""

    engine_id: str
    journal: str
    entry: LedgerEntry


async def connect() -> Connection:
    """A connection to Django's default database."""
    info = make_conninfo(conninfo("lorikeet-ledger"), connect_timeout=CONNECT_S)
    return await AsyncConnection.connect(info, autocommit=True)


async def write(connection: Connection, lines: Sequence[Line]) -> None:
    """Write the lines, except those that are in the ledger; all of them or, on an error, none.

    Raises:
        REFUSED: at least one of them will never be taken.
        psycopg.Error: they can't be written now.
    """
    for line in lines:
        started_at = line.entry.account.started_at
        if not EARLIEST <= started_at < LATEST:
            raise psycopg.DataError(f"{started_at} is not a time that requests come at")
    sent = _json(lines)
    try:
        await connection.execute(_WRITE, [sent])
    except psycopg.errors.CheckViolation:  # the first of their month
        await connection.execute(_PARTITIONS, [sent])
        await connection.execute(_WRITE, [sent])


async def write_reports(connection: Connection, reports: Sequence[Report]) -> list[Seen]:
    """Write what journals count; what the ledger has of each at the same moment.

    Raises: as `write`.
    """
    cursor = await connection.execute(_REPORT, [_json(reports)])
    return [Seen(*row) for row in await cursor.fetchall()]


def _json(rows: Sequence[object]) -> Jsonb:
    return Jsonb(rows, dumps=msgspec.json.encode)


class _Call(NamedTuple):
    """What one call of `record` brought."""

    lines: list[Line]
    written: Written


class Ledger:
    """`inference.grants.Recorder`. Use as an async context manager; leaving it writes the rest.

    One task with one connection writes one batch at a time. What fails is tried again with
    back-off for as long as it takes, unless the database will never take it: such an entry is
    logged as `usage_not_billable` with all it says, and counts as written, for the engine would
    send it for ever. It stays in the engine's count, so reconciliation keeps showing it.
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
        """Entries that engines were told are in the ledger."""
        self.unbillable = 0
        """Those of them that are in the log instead."""
        self.turned_away = 0
        """Entries that came while the memory was full; their engines send them again."""
        self._turning_away = False
        self._listeners: list[Listener] = []

    def on_written(self, listener: Listener) -> None:
        """Call `listener` with each batch once it is committed, from the event loop: be quick.

        An entry that an engine sent again is told again, and so is one that is not billable.
        """
        self._listeners.append(listener)

    def record(
        self, engine_id: str, journal: str, entries: Sequence[LedgerEntry], written: Written
    ) -> None:
        """Write the entries and then call `written`; returns at once, never blocks, never raises.

        Beyond the capacity they are turned away, and `written` is never called.
        """
        if self.waiting >= self._capacity:
            self._turn_away(len(entries))
            return
        self._calls.append(_Call([Line(engine_id, journal, e) for e in entries], written))
        self.waiting += len(entries)
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
        self._journals.heard(engine_id, stats, time.monotonic())
        self._needed.set()

    async def __aenter__(self) -> Ledger:
        self._task = asyncio.create_task(supervised("ledger", self._run), name="ledger")
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
        await self._write_all(lines, write, self._not_billable)
        self._turning_away = False
        for call in batch:
            self._calls.popleft()
            self.waiting -= len(call.lines)
            self.written += len(call.lines)
            self._tell(call.written, [line.entry.id for line in call.lines])
        for listener in self._listeners:
            self._tell(listener, lines)

    def _some_calls(self) -> Iterator[_Call]:
        """The oldest, up to about BATCH entries."""
        entries = 0
        for call in self._calls:
            yield call
            entries += len(call.lines)
            if entries >= BATCH:
                return

    @staticmethod
    def _tell(listener: Callable[[T], object], news: T) -> None:
        try:
            listener(news)
        except Exception:  # theirs; the others must be told
            log.exception("ledger_callback_failed")

    async def _write_reports(self) -> None:
        self._report_at = time.monotonic() + self._report_s
        if self._journals:
            found = await self._write_all(self._journals.take(), write_reports, self._not_reported)
            self._journals.written([seen for some in found for seen in some], time.monotonic())

    def _not_billable(self, line: Line, error: Exception) -> None:
        self.unbillable += 1
        fields = {"engine_id": line.engine_id, "journal": line.journal}
        fields |= msgspec.structs.asdict(line.entry)
        log.error("usage_not_billable", reason=_told(error), **fields)

    def _not_reported(self, report: Report, error: Exception) -> None:
        log.error("journal_not_reported", reason=_told(error), **msgspec.structs.asdict(report))

    async def _write_all(
        self,
        rows: Sequence[T],
        write: Callable[[Connection, Sequence[T]], Awaitable[R]],
        refuse: Callable[[T, Exception], None],
    ) -> list[R]:
        """Write all rows, by halves where some are refused or all are too many at once, down to
        those that are at fault."""
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
        """Try until it is done or refused, however long the database is away.

        Raises:
            REFUSED, or TOO_LONG if there are fewer rows to try with.
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
                    log.error("ledger_not_written", waiting=self.waiting, reason=_told(error))
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
    # Not wait_for: Python 3.11's forgets that it was cancelled when the event is set just then.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _told(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
