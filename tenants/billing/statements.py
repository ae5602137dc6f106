"""The ledger's SQL: events, their hourly sums and their journals' sums, each counted exactly once.

A request is billed once: an event is inserted under the id and start that its gateway gave it,
unless it is there already; only inserted events are added to the sums; all of it is one statement,
so one transaction. A batch may therefore be tried again at any time, by any gateway. Triggers on
the hourly sums add them to their months at the end of the statement.

A request may have been tried on several engines. Entries of attempts are cumulative, so only the
highest attempt is billed: its event replaces that of a lower one, and lower ones are kept beside it
(`SupersededAttempt`). All of them count in the sums of their journals, as they do in the engines'.
The first statement inserts no second entry of a request, so what it left out is a repetition or
another attempt, which `_SUPERSEDE` handles. The events are locked first, in a statement of its own,
so that `_SUPERSEDE` sees all known attempts and none is added meanwhile; its result depends only on
the set of attempts, not on the order in which they came.

All writers lock rows in sorted order, and tables in the same order, so that gateways with
overlapping batches wait for each other instead of deadlocking.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from inference.link.accounts import LedgerEntry
from inference.link.values import MAX_TIME_S
from tenants.billing.journals import JournalReport, Seen

Connection = AsyncConnection[tuple[Any, ...]]

EARLIEST = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
"""A request that starts outside of these times is a mistake, and each month that is written to gets
a table of its own."""

REFUSED = (
    psycopg.DataError,
    psycopg.errors.ForeignKeyViolation,
    psycopg.errors.CheckViolation,  # an operator has detached the table of its month
    UnicodeEncodeError,
)
"""Errors for which the row itself is at fault. After any other error (for example a schema that
this release does not know) the row waits and is tried again."""

_GROUP = "tenant_id, key_id, adapter, model, base_model"
_TOKENS = "prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens"
_TIMES = "given_s, queue_s, load_s, ttft_s, total_s"
_BILL = f"""{_GROUP}, version_id, engine_id, journal, {_TOKENS}, prompt_price, cached_prompt_price,
        output_price, cost, finish_reason, {_TIMES}, attempt,
        inherited_tokens, trace_id"""
"""Columns of an event that come from its entry, besides `id` and `started_at`."""


def _time(path: str, otherwise: str = "0") -> str:
    """The time there in an entry, in seconds; `otherwise` if no request takes so long."""
    time = f"(e->2->{path})::float8"
    return f"CASE WHEN {time} BETWEEN 0 AND {MAX_TIME_S:.0f} THEN {time} ELSE {otherwise} END"


# One JSON array of [engine_id, journal, entry], the entry as on the wire: encoding it in C costs
# the event loop a tenth of what arrays for unnest() do. Fields on the wire never change position.
# NaN is null in JSON; an impossible time is no reason not to bill. Materialised, so that each field
# is extracted from the JSON once, however often it is read.
_SENT = f"""
WITH sent AS MATERIALIZED (
    SELECT e->>0 AS engine_id, e->>1 AS journal, e->2->>0 AS id,
           (e->2->1->>0)::bigint AS tenant_id, (e->2->1->>1)::bigint AS key_id,
           to_timestamp((e->2->1->>2)::float8) AS started_at, e->2->1->>3 AS base_model,
           (e->2->1->>4)::bigint AS adapter_id, (e->2->1->>5)::bigint AS version_id,
           (e->2->1->6->>0)::bigint AS prompt_price,
           (e->2->1->6->>1)::bigint AS cached_prompt_price,
           (e->2->1->6->>2)::bigint AS output_price,
           e->2->>2 AS model, (e->2->3->>0)::bigint AS prompt_tokens,
           (e->2->3->>1)::bigint AS cached_tokens, (e->2->3->>2)::bigint AS completion_tokens,
           (e->2->3->>3)::bigint AS reasoning_tokens,
           {_time("3->>4")} AS queue_s, {_time("3->>5")} AS load_s,
           {_time("3->>6", "NULL")} AS ttft_s, {_time("3->>7")} AS total_s,
           e->2->>4 AS finish_reason,
           (e->2->>5)::int AS attempt, (e->2->>6)::bigint AS inherited_tokens,
           {_time("1->>8")} AS given_s,
           left(coalesce(e->2->1->>9, ''), 32) AS trace_id
    FROM jsonb_array_elements(%s) AS e
)"""

_ENTRIES = f""", entry AS (
    SELECT id, started_at, {_BILL}
    FROM sent
    CROSS JOIN LATERAL (SELECT
        CASE WHEN model = base_model THEN '' ELSE split_part(model, '@', 1) END AS adapter,
        (prompt_tokens - cached_tokens) * prompt_price + cached_tokens * cached_prompt_price
            + completion_tokens * output_price AS cost) AS made
)"""

# `change` is what to add to the sums of hours, `recorded` the entries that are new in the ledger,
# `again` the tokens that are now known to have been generated again.
_ADD_UP = f""", rollup AS (
    INSERT INTO tenants_usagerollup AS kept (hour, {_GROUP}, requests, {_TOKENS}, cost)
    SELECT date_trunc('hour', started_at, 'UTC'), {_GROUP}, sum(requests), sum(prompt_tokens),
           sum(cached_tokens), sum(completion_tokens), sum(reasoning_tokens), sum(cost)
    FROM change GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 2, 1, 3, 4, 5, 6
    ON CONFLICT (tenant_id, hour, key_id, adapter, model, base_model) DO UPDATE SET
        requests = kept.requests + excluded.requests,
        prompt_tokens = kept.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        completion_tokens = kept.completion_tokens + excluded.completion_tokens,
        reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
        cost = kept.cost + excluded.cost
), journal AS (
    INSERT INTO tenants_enginejournal AS kept (
        journal, engine_id, ledger_requests, ledger_prompt_tokens, ledger_cached_tokens,
        ledger_completion_tokens, counted_requests, counted_prompt_tokens, counted_cached_tokens,
        counted_completion_tokens, waiting_requests, unjournaled_tokens)
    SELECT journal, max(engine_id), count(*), sum(prompt_tokens), sum(cached_tokens),
           sum(completion_tokens), 0, 0, 0, 0, 0, 0
    FROM recorded GROUP BY journal ORDER BY journal
    ON CONFLICT (journal) DO UPDATE SET
        engine_id = excluded.engine_id,
        ledger_requests = kept.ledger_requests + excluded.ledger_requests,
        ledger_prompt_tokens = kept.ledger_prompt_tokens + excluded.ledger_prompt_tokens,
        ledger_cached_tokens = kept.ledger_cached_tokens + excluded.ledger_cached_tokens,
        ledger_completion_tokens =
            kept.ledger_completion_tokens + excluded.ledger_completion_tokens
)
SELECT count(*), coalesce((SELECT sum(tokens) FROM again), 0) FROM recorded
"""

_INSERT = f""", recorded AS (
    INSERT INTO tenants_usageevent AS made (id, started_at, {_BILL})
    SELECT id, started_at, {_BILL} FROM entry ORDER BY id, started_at, attempt DESC
    ON CONFLICT DO NOTHING
    RETURNING started_at, {_GROUP}, engine_id, journal, {_TOKENS}, cost
), change AS (
    SELECT 1 AS requests, recorded.* FROM recorded
), again AS (
    SELECT 0 AS tokens
)"""

_LOCK = f"""{_SENT}
SELECT FROM tenants_usageevent AS event
JOIN (SELECT DISTINCT id, started_at FROM sent) AS one USING (id, started_at)
ORDER BY id, started_at FOR UPDATE OF event
"""

# `fresh` are attempts that the ledger does not know, `event` is what it has of their requests.
_SUPERSEDE = f""", fresh AS MATERIALIZED (
    SELECT DISTINCT ON (entry.id, entry.started_at, entry.attempt) entry.*
    FROM entry JOIN tenants_usageevent AS event USING (id, started_at)
    WHERE entry.attempt <> event.attempt AND NOT EXISTS (
        SELECT FROM tenants_supersededattempt AS known
        WHERE known.request_id = entry.id AND known.started_at = entry.started_at
          AND known.attempt = entry.attempt)
    ORDER BY entry.id, entry.started_at, entry.attempt
), request AS MATERIALIZED (
    SELECT DISTINCT id, started_at FROM fresh
), event AS MATERIALIZED (
    SELECT event.* FROM tenants_usageevent AS event JOIN request USING (id, started_at)
), new_or_billed AS (
    SELECT id, started_at, {_BILL} FROM fresh UNION ALL SELECT id, started_at, {_BILL} FROM event
), highest AS MATERIALIZED (
    SELECT DISTINCT ON (id, started_at) * FROM new_or_billed
    ORDER BY id, started_at, attempt DESC
), known AS (
    SELECT id, started_at, attempt, completion_tokens, inherited_tokens FROM new_or_billed
    UNION ALL
    SELECT request.*, attempt, completion_tokens, inherited_tokens
    FROM tenants_supersededattempt AS known
    JOIN request ON request.id = known.request_id AND request.started_at = known.started_at
), excess AS (
    SELECT id, started_at, greatest(0, completion_tokens - lead(inherited_tokens) OVER (
        PARTITION BY id, started_at ORDER BY attempt)) AS tokens
    FROM known
), regenerated AS (
    SELECT id, started_at, sum(tokens) AS regenerated_tokens FROM excess GROUP BY 1, 2
), superseded AS (
    INSERT INTO tenants_supersededattempt (
        request_id, started_at, attempt, engine_id, journal, {_TOKENS}, inherited_tokens,
        finish_reason, {_TIMES})
    SELECT id, started_at, one.attempt, one.engine_id, one.journal,
           one.prompt_tokens, one.cached_tokens, one.completion_tokens, one.reasoning_tokens,
           one.inherited_tokens, one.finish_reason, one.given_s, one.queue_s, one.load_s,
           one.ttft_s, one.total_s
    FROM new_or_billed AS one JOIN highest USING (id, started_at)
    WHERE one.attempt < highest.attempt
    ORDER BY id, started_at, one.attempt
), billed AS (
    UPDATE tenants_usageevent AS kept SET ({_BILL}, regenerated_tokens) = (
        SELECT {_BILL}, regenerated_tokens FROM highest JOIN regenerated USING (id, started_at)
        WHERE id = kept.id AND started_at = kept.started_at)
    FROM request WHERE request.id = kept.id AND request.started_at = kept.started_at
), change AS (
    SELECT 1 AS requests, started_at, {_GROUP}, {_TOKENS}, cost FROM highest
    UNION ALL
    SELECT -1, started_at, {_GROUP}, -prompt_tokens, -cached_tokens, -completion_tokens,
           -reasoning_tokens, -cost
    FROM event
), recorded AS (
    SELECT * FROM fresh
), again AS (
    SELECT greatest(0, regenerated.regenerated_tokens - event.regenerated_tokens) AS tokens
    FROM regenerated JOIN event USING (id, started_at)
)"""


_WRITE = f"{_SENT}{_ENTRIES}{_INSERT}{_ADD_UP}"
_WRITE_AGAIN = f"{_SENT}{_ENTRIES}{_SUPERSEDE}{_ADD_UP}"

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


class StatementLine(NamedTuple):
    """An entry with the engine that sent it."""

    engine_id: str
    journal: str
    entry: LedgerEntry


async def write(connection: Connection, lines: Sequence[StatementLine]) -> int:
    """Write the lines that are not in the ledger yet. Returns how many tokens these lines newly
    show to have been generated again for requests that moved to another engine.

    After an error some lines may be written and others not; they can all be tried again.

    Raises:
        REFUSED: at least one of them will never be accepted.
        psycopg.Error: they can't be written now.
    """
    _require_times(lines)
    sent = _json(lines)
    try:
        inserted, _ = await _count(connection, _WRITE, sent)
    except psycopg.errors.CheckViolation:  # the first of their month, which has no table yet
        await connection.execute(_PARTITIONS, [sent])
        inserted, _ = await _count(connection, _WRITE, sent)
    if inserted == len(lines):
        return 0
    async with connection.transaction():
        await connection.execute(_LOCK, [sent])
        _, regenerated = await _count(connection, _WRITE_AGAIN, sent)
    return regenerated


async def make_months(connection: Connection, lines: Sequence[StatementLine]) -> None:
    """Create the tables of the lines' months that are missing.

    Raises: as `write`.
    """
    _require_times(lines)
    await connection.execute(_PARTITIONS, [_json(lines)])


def _require_times(lines: Sequence[StatementLine]) -> None:
    for line in lines:
        started_at = line.entry.account.started_at
        if not EARLIEST <= started_at < LATEST:
            raise psycopg.DataError(f"{started_at} is not a time that requests come at")


async def _count(connection: Connection, statement: str, sent: Jsonb) -> tuple[int, int]:
    ((entries, regenerated),) = await (await connection.execute(statement, [sent])).fetchall()
    return int(entries), int(regenerated)


async def write_reports(connection: Connection, reports: Sequence[JournalReport]) -> list[Seen]:
    """Write the journals' counts. Returns what the ledger has of each at the same moment.

    Raises: as `write`.
    """
    cursor = await connection.execute(_REPORT, [_json(reports)])
    return [Seen(*row) for row in await cursor.fetchall()]


def _json(rows: Sequence[object]) -> Jsonb:
    return Jsonb(rows, dumps=msgspec.json.encode)
