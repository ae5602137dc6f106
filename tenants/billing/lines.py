"""Lines of the ledger: what one has, how a batch of them is read in SQL, and how it is added up.

Each statement that writes a batch begins with `SENT`, and ends with `ADD_UP`.
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

GROUP = "tenant_id, key_id, adapter, model, base_model"
TOKENS = "prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens"
TIMES = "given_s, queue_s, load_s, ttft_s, total_s"
BILL = f"""{GROUP}, version_id, engine_id, journal, {TOKENS}, prompt_price, cached_prompt_price,
        output_price, cost, finish_reason, {TIMES}, attempt,
        inherited_tokens, trace_id, overflow, is_estimated, route"""
"""Columns of an event that come from its entry, besides `id` and `started_at`."""


def _time(path: str, otherwise: str = "0") -> str:
    """The time there in an entry, in seconds; `otherwise` if no request takes so long."""
    time = f"(e->2->{path})::float8"
    return f"CASE WHEN {time} BETWEEN 0 AND {MAX_TIME_S:.0f} THEN {time} ELSE {otherwise} END"


# One JSON array of [engine_id, journal, entry], the entry as on the wire: encoding it in C costs
# the event loop a tenth of what arrays for unnest() do. Fields on the wire never change position.
# NaN is null in JSON; an impossible time is no reason not to bill. Materialised, so that each field
# is extracted from the JSON once, however often it is read.
SENT = f"""
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
           left(coalesce(e->2->1->>9, ''), 32) AS trace_id,
           coalesce((e->2->1->>10)::boolean, false) AS overflow,
           left(coalesce(e->2->1->>11, ''), 63) AS route,
           coalesce((e->2->3->>8)::boolean, false) AS is_estimated
    FROM jsonb_array_elements(%s) AS e
)"""

ENTRIES = f""", entry AS (
    SELECT id, started_at, {BILL}
    FROM sent
    CROSS JOIN LATERAL (SELECT
        CASE WHEN model = base_model THEN '' ELSE split_part(model, '@', 1) END AS adapter,
        (prompt_tokens - cached_tokens) * prompt_price + cached_tokens * cached_prompt_price
            + completion_tokens * output_price AS cost) AS made
)"""

# `change` is what to add to the sums of hours, `recorded` the entries that are new in the ledger,
# `again` the tokens that are now known to have been generated again.
ADD_UP = f""", rollup AS (
    INSERT INTO tenants_usagerollup AS kept (hour, {GROUP}, requests, {TOKENS}, cost)
    SELECT date_trunc('hour', started_at, 'UTC'), {GROUP}, sum(requests), sum(prompt_tokens),
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


class StatementLine(NamedTuple):
    """An entry with the engine that sent it."""

    engine_id: str
    journal: str
    entry: LedgerEntry


def require_times(lines: Sequence[StatementLine]) -> None:
    """Refuse lines of requests that started at an impossible time.

    Raises:
        psycopg.DataError: one of REFUSED.
    """
    for line in lines:
        started_at = line.entry.account.started_at
        if not EARLIEST <= started_at < LATEST:
            raise psycopg.DataError(f"{started_at} is not a time that requests come at")


async def count(connection: Connection, statement: str, sent: Jsonb) -> tuple[int, int]:
    """Execute a statement that ends with `ADD_UP`. Returns how many entries are new in the ledger,
    and how many tokens are now known to have been generated again."""
    ((entries, regenerated),) = await (await connection.execute(statement, [sent])).fetchall()
    return int(entries), int(regenerated)


def as_json(rows: Sequence[object]) -> Jsonb:
    """The rows as the statements' parameter."""
    return Jsonb(rows, dumps=msgspec.json.encode)
