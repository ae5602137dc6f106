"""The ledger's SQL: events, their hourly sums and their journals' sums, each counted exactly once.

A request is billed once: an event is inserted under the id and start that its gateway gave it,
unless it is there already; only inserted events are added to the sums; all of it is one statement,
so one transaction. A batch may therefore be tried again at any time, by any gateway. Triggers on
the hourly sums add them to their months at the end of the statement.

A request may have been tried on several engines, and each attempt has a line. `insertion` inserts
no second line of a request, so what it left out is a repetition or another attempt, which
`superseding` handles.

All writers lock rows in sorted order, and tables in the same order, so that gateways with
overlapping batches wait for each other instead of deadlocking.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenants.billing.insertion import insert
from tenants.billing.journals import JournalReport, LedgerSums
from tenants.billing.lines import Connection, StatementLine, as_json, require_times
from tenants.billing.superseding import supersede

_REPORT = """
INSERT INTO tenants_enginejournal AS kept (
    journal, engine_id, ledger_requests, ledger_prompt_tokens, ledger_cached_tokens,
    ledger_completion_tokens, counted_requests, counted_prompt_tokens, counted_cached_tokens,
    counted_completion_tokens, waiting_requests, unjournaled_tokens, surplus_requests,
    surplus_tokens, reported_at)
SELECT journal, engine_id, 0, 0, 0, 0, counted_requests, counted_prompt_tokens,
       counted_cached_tokens, counted_completion_tokens, waiting_requests, unjournaled_tokens,
       surplus_requests, surplus_tokens, now()
FROM jsonb_to_recordset(%s) AS reported (
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


async def write(connection: Connection, lines: Sequence[StatementLine]) -> int:
    """Write the lines that are not in the ledger yet. Returns how many tokens these lines newly
    show to have been generated again for requests that moved to another engine.

    After an error some lines may be written and others not; they can all be tried again.

    Raises:
        REFUSED: at least one of them will never be accepted.
        psycopg.Error: they can't be written now.
    """
    require_times(lines)
    sent = as_json(lines)
    if await insert(connection, sent) == len(lines):
        return 0
    return await supersede(connection, sent)


async def write_reports(
    connection: Connection, reports: Sequence[JournalReport]
) -> list[LedgerSums]:
    """Write the journals' counts. Returns what the ledger has of each at the same moment.

    Raises: as `write`.
    """
    cursor = await connection.execute(_REPORT, [as_json(reports)])
    return [LedgerSums(*row) for row in await cursor.fetchall()]
