"""Inserts what is new: a line whose request is in the ledger already changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg.types.json import Jsonb

from tenants.billing.lines import (
    ADD_UP,
    BILL,
    ENTRIES,
    GROUP,
    SENT,
    TOKENS,
    Connection,
    StatementLine,
    as_json,
    count,
    require_times,
)

_INSERT = f"""{SENT}{ENTRIES}, recorded AS (
    INSERT INTO tenants_usageevent AS made (id, started_at, {BILL})
    SELECT id, started_at, {BILL} FROM entry ORDER BY id, started_at, attempt DESC
    ON CONFLICT DO NOTHING
    RETURNING started_at, {GROUP}, engine_id, journal, {TOKENS}, cost
), change AS (
    SELECT 1 AS requests, recorded.* FROM recorded
), again AS (
    SELECT 0 AS tokens
){ADD_UP}"""

_PARTITIONS = f"""{SENT}
SELECT tenants_usage_partition(month)
FROM (SELECT DISTINCT date_trunc('month', started_at, 'UTC') AS month FROM sent) AS months
"""


async def insert(connection: Connection, sent: Jsonb) -> int:
    """Insert the lines whose requests are not in the ledger yet. Returns their number."""
    try:
        inserted, _ = await count(connection, _INSERT, sent)
    except psycopg.errors.CheckViolation:  # the first of their month, which has no table yet
        await connection.execute(_PARTITIONS, [sent])
        inserted, _ = await count(connection, _INSERT, sent)
    return inserted


async def make_months(connection: Connection, lines: Sequence[StatementLine]) -> None:
    """Create the tables of the lines' months that are missing.

    Raises: as `statements.write`.
    """
    require_times(lines)
    await connection.execute(_PARTITIONS, [as_json(lines)])
