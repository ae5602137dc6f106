"""What PostgreSQL has of a run, in separate SQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.labs.chaos.judging.facts import (
    Counts,
    Entry,
    Event,
    Group,
    JournalSums,
    Sums,
    TuningRow,
)

TRAINER = "trainer"
"""The journal of the lines of fine-tuning jobs."""

_EVENTS = """
SELECT id, journal, tenant_id, key_id, model, prompt_tokens, cached_tokens, completion_tokens,
       finish_reason, extract(epoch FROM started_at)::float8 AS started_at, engine_id,
       prompt_price, cached_prompt_price, output_price, cost,
       extract(epoch FROM date_trunc('hour', started_at, 'UTC'))::bigint AS hour, adapter,
       base_model, attempt, inherited_tokens, regenerated_tokens
FROM tenants_usageevent WHERE (journal = %s) = %s
"""
_SUPERSEDED = """
SELECT request_id, one.journal, tenant_id, key_id, model, one.prompt_tokens, one.cached_tokens,
       one.completion_tokens, one.finish_reason, extract(epoch FROM one.started_at)::float8,
       one.attempt, one.inherited_tokens
FROM tenants_supersededattempt AS one
JOIN tenants_usageevent AS event ON event.id = request_id AND event.started_at = one.started_at
"""
_SUMS = """
SELECT extract(epoch FROM start)::bigint, tenant_id, key_id, adapter, model, base_model,
       requests, prompt_tokens, cached_tokens, completion_tokens, cost::bigint
FROM tenants_usagesum WHERE span = %s
"""
_TUNINGS = """
SELECT id, status, claimed_by IS NOT NULL, (
    SELECT count(*) FROM tenants_adapter AS made
    WHERE made.tenant_id = job.tenant_id AND name = suffix || '-' || right(job.id, 8))
FROM tenants_finetuningjob AS job
"""
_JOURNALS = """
SELECT journal, engine_id, ledger_requests, ledger_prompt_tokens, ledger_cached_tokens,
       ledger_completion_tokens, counted_requests, counted_prompt_tokens, counted_cached_tokens,
       counted_completion_tokens, unjournaled_tokens, waiting_requests
FROM tenants_enginejournal WHERE journal <> %s
"""
_SPENT = """
SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint, coalesce(sum(cost), 0)::bigint
FROM tenants_usageevent
WHERE started_at >= to_timestamp(%s) AND started_at < to_timestamp(%s) AND
"""
_SCOPES = {
    "t": "tenant_id = %s",
    "k": "key_id = %s",
    "a": "(tenant_id, adapter) = (SELECT tenant_id, name FROM tenants_adapter WHERE id = %s)",
}


@contextmanager
def connected() -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection to the run's database."""
    with psycopg.connect(os.environ["LORIKEET_DATABASE_URL"], autocommit=True) as connection:
        yield connection


def events() -> list[Event]:
    """The ledger's events of requests."""
    with connected() as connection:
        rows = connection.execute(_EVENTS, [TRAINER, False])
        return [_event(row, _made_at(row[0])) for row in rows]


def trainings() -> list[Event]:
    """The ledger's lines of fine-tuning jobs."""
    with connected() as connection:
        return [_event(row, 0.0) for row in connection.execute(_EVENTS, [TRAINER, True])]


def _event(row: tuple[Any, ...], made_at: float) -> Event:
    id, journal, tenant_id, key_id, model, *rest = row
    prompt, cached, output, finish_reason, started_at, engine_id, *rest = rest
    *prices, cost, hour, adapter, base_model, attempt, inherited, regenerated = rest
    entry = Entry(
        id, journal, tenant_id, key_id, model, Counts(prompt, cached, output), finish_reason,
        started_at, attempt, inherited,
    )  # fmt: skip
    group = Group(hour, tenant_id, key_id, adapter, model, base_model)
    price = prices[0], prices[1], prices[2]
    return Event(entry, made_at, engine_id, price, cost, group, regenerated)


def superseded() -> list[Entry]:
    """The attempts of which the ledger bills a higher one."""
    with connected() as connection:
        return [
            Entry(id, journal, tenant_id, key_id, model, Counts(*row[:3]), *row[3:])
            for id, journal, tenant_id, key_id, model, *row in connection.execute(_SUPERSEDED)
        ]


def batches() -> dict[str, str]:
    """The status of each batch, by the prefix of its lines' ids."""
    with connected() as connection:
        rows = connection.execute("SELECT id, status FROM tenants_batch").fetchall()
    return {id.removeprefix("batch_"): status for id, status in rows}


def in_background() -> dict[str, str]:
    """The status of each response in the background, by its request's id."""
    with connected() as connection:
        rows = connection.execute(
            "SELECT c.name, b.status FROM tenants_backgroundresponse b"
            " JOIN tenants_storedcontent c ON c.id = b.content_id"
        ).fetchall()
    return dict(rows)


def tunings() -> dict[str, TuningRow]:
    """The fine-tuning jobs by their ids."""
    with connected() as connection:
        return {id: TuningRow(*row) for id, *row in connection.execute(_TUNINGS)}


def _made_at(id: str) -> float:
    """A request's id begins with the time in ms at which the gateway made it."""
    return int(id[:12], 16) / 1000


def sums(span: str) -> dict[Group, Sums]:
    """The sums of each `hour` or each `month`."""
    with connected() as connection:
        return {Group(*row[:6]): Sums(*row[6:]) for row in connection.execute(_SUMS, [span])}


def journal_sums() -> dict[str, JournalSums]:
    """Both sides of each engine's journal."""
    found = {}
    with connected() as connection:
        for journal, engine_id, *rest in connection.execute(_JOURNALS, [TRAINER]):
            in_ledger, counted, (unjournaled, waiting) = rest[:4], rest[4:8], rest[8:]
            found[journal] = JournalSums(
                engine_id, Sums(*in_ledger), Sums(*counted), unjournaled, waiting
            )
    return found


def spent(scope: str, start: int, end: int) -> tuple[int, int]:
    """Tokens, and cost in pico-units, of a scope in a period. A scope is its kind and row id: `t1`,
    `k7`, `a3`."""
    with connected() as connection:
        query = _SPENT + _SCOPES[scope[0]]
        row = connection.execute(query, [start, end, int(scope[1:])]).fetchone()
    assert row is not None
    return row[0], row[1]
