"""Supersedes what a lower attempt of a request was billed, once a higher one is known.

Entries of attempts are cumulative, so only the highest attempt is billed: its event replaces that
of a lower one, and lower ones are kept beside it (`SupersededAttempt`). All of them count in the
sums of their journals, as they do in the engines'. The events are locked first, in a statement of
its own, so that all known attempts are seen and none is added meanwhile; the result depends only on
the set of attempts, not on the order in which they came.
"""

from __future__ import annotations

from psycopg.types.json import Jsonb

from tenants.billing.lines import (
    ADD_UP,
    BILL,
    ENTRIES,
    GROUP,
    SENT,
    TIMES,
    TOKENS,
    Connection,
    count,
)

_LOCK = f"""{SENT}
SELECT FROM tenants_usageevent AS event
JOIN (SELECT DISTINCT id, started_at FROM sent) AS one USING (id, started_at)
ORDER BY id, started_at FOR UPDATE OF event
"""

# `fresh` are attempts that the ledger does not know, `event` is what it has of their requests.
_SUPERSEDE = f"""{SENT}{ENTRIES}, fresh AS MATERIALIZED (
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
    SELECT id, started_at, {BILL} FROM fresh UNION ALL SELECT id, started_at, {BILL} FROM event
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
        request_id, started_at, attempt, engine_id, journal, {TOKENS}, inherited_tokens,
        finish_reason, {TIMES})
    SELECT id, started_at, one.attempt, one.engine_id, one.journal,
           one.prompt_tokens, one.cached_tokens, one.completion_tokens, one.reasoning_tokens,
           one.inherited_tokens, one.finish_reason, one.given_s, one.queue_s, one.load_s,
           one.ttft_s, one.total_s
    FROM new_or_billed AS one JOIN highest USING (id, started_at)
    WHERE one.attempt < highest.attempt
    ORDER BY id, started_at, one.attempt
), billed AS (
    UPDATE tenants_usageevent AS kept SET ({BILL}, regenerated_tokens) = (
        SELECT {BILL}, regenerated_tokens FROM highest JOIN regenerated USING (id, started_at)
        WHERE id = kept.id AND started_at = kept.started_at)
    FROM request WHERE request.id = kept.id AND request.started_at = kept.started_at
), change AS (
    SELECT 1 AS requests, started_at, {GROUP}, {TOKENS}, cost FROM highest
    UNION ALL
    SELECT -1, started_at, {GROUP}, -prompt_tokens, -cached_tokens, -completion_tokens,
           -reasoning_tokens, -cost
    FROM event
), recorded AS (
    SELECT * FROM fresh
), again AS (
    SELECT greatest(0, regenerated.regenerated_tokens - event.regenerated_tokens) AS tokens
    FROM regenerated JOIN event USING (id, started_at)
){ADD_UP}"""


async def supersede(connection: Connection, sent: Jsonb) -> int:
    """Bill the highest attempt of each request. Returns how many tokens are now known to have been
    generated again."""
    async with connection.transaction():
        await connection.execute(_LOCK, [sent])
        _, regenerated = await count(connection, _SUPERSEDE, sent)
    return regenerated
