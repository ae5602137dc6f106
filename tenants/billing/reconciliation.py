"""Compares the ledger with what the engines counted, and its sums with its events.

The first comparison is always available (`tenants.billing.journals` explains how both sides are
made comparable); the second reads every event: `manage.py reconcile --check-rollups`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from tenants.billing.drift import JOURNALS, LATELY, Drift, DriftedJournal
from tenants.models import EngineJournal
from tenants.models.usage.sums import FIGURES
from tenants.utc import month_end


def drifts() -> list[Drift]:
    """The drift of each journal that reported lately or that may differ, ordered by engine."""
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(JOURNALS, [now - LATELY])
        return [Drift.of(DriftedJournal(*row), now) for row in cursor.fetchall()]


def accept(drift: Drift) -> None:
    """Accept the present difference as explained, so that it no longer counts as drift."""
    EngineJournal.objects.filter(pk=drift.journal.journal).update(
        accepted_requests=F("accepted_requests") + drift.requests,
        accepted_tokens=F("accepted_tokens") + drift.tokens,
    )


class ReconciledGroup(NamedTuple):
    """What a row of sums covers. Ids are those of rows; an empty `adapter` means the base model
    itself."""

    tenant_id: int
    start: datetime
    key_id: int
    adapter: str
    model: str
    base_model: str


class ReconciledSums(NamedTuple):
    """Sums over events; the cost in pico-units."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost: int


class Difference(NamedTuple):
    """A row of sums that is wrong: what its parts add up to, and what is stored."""

    group: ReconciledGroup
    parts: ReconciledSums
    kept: ReconciledSums


class JournalDifference(NamedTuple):
    """A journal whose sums differ from the total of its events and superseded attempts. Each tuple
    has requests, then prompt, cached and output tokens."""

    journal: str
    events: tuple[int, ...]
    ledger: tuple[int, ...]


_SUMS = ", ".join(f"sum({name}) AS {name}" for name in FIGURES[1:])


def _known(source: str) -> str:
    return ", ".join(f"coalesce({source}.{name}, 0)" for name in FIGURES)


def _differing(parts: str, kept: str, start: str) -> str:
    """A query for Differences: `kept` is a table whose rows begin at their `start`."""

    return f"""
WITH part AS ({parts}), kept AS (
    SELECT *, {start} AS start FROM {kept} WHERE {start} >= %(start)s AND {start} < %(end)s
)
SELECT tenant_id, start, key_id, adapter, model, base_model, {_known("part")}, {_known("kept")}
FROM part FULL JOIN kept USING (tenant_id, start, key_id, adapter, model, base_model)
WHERE ({_known("part")}) <> ({_known("kept")})
ORDER BY tenant_id, start, key_id, adapter, model, base_model
"""


_HOURS_DIFFER = _differing(
    f"""
    SELECT tenant_id, date_trunc('hour', started_at, 'UTC') AS start, key_id, adapter, model,
           base_model, count(*) AS requests, {_SUMS}
    FROM tenants_usageevent WHERE started_at >= %(start)s AND started_at < %(end)s
    GROUP BY 1, 2, 3, 4, 5, 6""",
    "tenants_usagerollup",
    "hour",
)
_MONTHS_DIFFER = _differing(
    f"""
    SELECT tenant_id, date_trunc('month', hour, 'UTC') AS start, key_id, adapter, model,
           base_model, sum(requests) AS requests, {_SUMS}
    FROM tenants_usagerollup WHERE hour >= %(start)s AND hour < %(end)s
    GROUP BY 1, 2, 3, 4, 5, 6""",
    "tenants_usagemonth",
    "month",
)
# Whole days or months, over all keys and adapters.
_TOTALS_DIFFER = """
WITH part AS (
    SELECT tenant_id, date_trunc(%(span)s, hour, 'UTC') AS start, base_model,
           sum(requests) AS requests, {sums}
    FROM tenants_usagerollup WHERE hour >= %(start)s AND hour < %(end)s
    GROUP BY 1, 2, 3
), kept AS (
    SELECT * FROM tenants_usagetotal
    WHERE span = %(span)s AND start >= %(start)s AND start < %(end)s
)
SELECT tenant_id, start, 0, '', '', base_model, {of_part}, {of_kept}
FROM part FULL JOIN kept USING (tenant_id, start, base_model)
WHERE ({of_part}) <> ({of_kept})
ORDER BY tenant_id, start, base_model
""".format(sums=_SUMS, of_part=_known("part"), of_kept=_known("kept"))
# Events from before engines kept journals have an empty one.
_JOURNALS = """
WITH entry AS (
    SELECT journal, prompt_tokens, cached_tokens, completion_tokens
    FROM tenants_usageevent WHERE journal <> ''
    UNION ALL
    SELECT journal, prompt_tokens, cached_tokens, completion_tokens
    FROM tenants_supersededattempt
), event AS (
    SELECT journal, count(*) AS requests, sum(prompt_tokens) AS prompt,
           sum(cached_tokens) AS cached, sum(completion_tokens) AS completion
    FROM entry GROUP BY journal
), ledger AS (
    SELECT journal, ledger_requests AS requests, ledger_prompt_tokens AS prompt,
           ledger_cached_tokens AS cached, ledger_completion_tokens AS completion
    FROM tenants_enginejournal
)
SELECT journal, coalesce(event.requests, 0), coalesce(event.prompt, 0), coalesce(event.cached, 0),
       coalesce(event.completion, 0), coalesce(ledger.requests, 0), coalesce(ledger.prompt, 0),
       coalesce(ledger.cached, 0), coalesce(ledger.completion, 0)
FROM event FULL JOIN ledger USING (journal)
WHERE (coalesce(event.requests, 0), coalesce(event.prompt, 0), coalesce(event.cached, 0),
       coalesce(event.completion, 0))
   <> (coalesce(ledger.requests, 0), coalesce(ledger.prompt, 0), coalesce(ledger.cached, 0),
       coalesce(ledger.completion, 0))
ORDER BY journal
"""
_MONTHS = """
SELECT to_char(hour AT TIME ZONE 'UTC', 'YYYY_MM') FROM tenants_usagerollup
UNION
SELECT to_char(month AT TIME ZONE 'UTC', 'YYYY_MM') FROM tenants_usagemonth
UNION
SELECT substring(relid::text FROM 'tenants_usageevent_(.*)')
FROM pg_partition_tree('tenants_usageevent') WHERE isleaf
ORDER BY 1
"""


@contextmanager
def snapshot() -> Iterator[None]:
    """All queries inside see the database as of one moment, however long they take. Must not be
    used inside a transaction."""
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def months(
    since: datetime | None = None, until: datetime | None = None
) -> list[tuple[datetime, datetime]]:
    """Start and end of the months that have events or sums, clipped to `since` and `until`."""
    found = (_month(name) for (name,) in _rows(_MONTHS))
    cut = [(max(start, since or start), min(end, until or end)) for start, end in found]
    return [(start, end) for start, end in cut if start < end]


def _month(name: str) -> tuple[datetime, datetime]:
    year, month = map(int, name.split("_"))
    start = datetime(year, month, 1, tzinfo=UTC)
    return start, month_end(start)


def rollup_differences(start: datetime, end: datetime) -> list[Difference]:
    """The hourly sums that do not agree with the events. `start` and `end` are whole hours."""
    return _differences(_HOURS_DIFFER, start, end)


def month_differences(start: datetime, end: datetime) -> list[Difference]:
    """The monthly sums that do not agree with the hourly ones. `start` and `end` are whole
    months."""
    return _differences(_MONTHS_DIFFER, start, end)


def total_differences(span: str, start: datetime, end: datetime) -> list[Difference]:
    """The sums of tenants' days or months (`span`) that do not agree with the hourly ones; their
    groups have no key, adapter or model. `start` and `end` are whole days or months."""
    return _differences(_TOTALS_DIFFER, start, end, span=span)


def _differences(query: str, start: datetime, end: datetime, **more: str) -> list[Difference]:
    group, figures = len(ReconciledGroup._fields), len(FIGURES)
    return [
        Difference(
            ReconciledGroup(*row[:group]),
            ReconciledSums(*map(int, row[group : group + figures])),
            ReconciledSums(*map(int, row[group + figures :])),
        )
        for row in _rows(query, {"start": start, "end": end, **more})
    ]


def journal_differences() -> list[JournalDifference]:
    """The journals whose sums do not agree with their events and superseded attempts."""
    return [
        JournalDifference(journal, tuple(map(int, sums[:4])), tuple(map(int, sums[4:])))
        for journal, *sums in _rows(_JOURNALS)
    ]


def _rows(query: str, values: Mapping[str, datetime | str] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
