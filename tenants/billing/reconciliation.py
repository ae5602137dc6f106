"""Compares the ledger with what the engines counted, and its sums with its events.

The first is always known (`tenants.billing.journals` says how both sides are made comparable),
the second reads every event: `manage.py reconcile --check-rollups`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.db.models import F, Q
from django.utils import timezone

from tenants.models import EngineJournal
from tenants.models.usage import FIGURES, month_end

SILENT = timedelta(hours=1)
"""Engines report every few seconds: one that said nothing for so long is off, or gone."""
LATELY = timedelta(days=30)
"""Each agent that starts with an empty folder makes a journal for ever: those that agree are shown
for so long."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What an engine counted and the ledger does not have; negative: the other way round.

    `tokens` are prompt and output tokens, `unjournaled_tokens` the output tokens of the engine's
    present run that are not even in its journal. All are 0 in steady state, whatever is in flight.
    What waits in the journal of an engine that is silent is missing as well, until it is back; of
    that only the requests are known.
    """

    journal: EngineJournal
    requests: int
    tokens: int
    unjournaled_tokens: int

    def __bool__(self) -> bool:
        return bool(self.requests or self.tokens or self.unjournaled_tokens)

    @classmethod
    def of(cls, journal: EngineJournal, now: datetime) -> Drift:
        silent = journal.reported_at is not None and journal.reported_at < now - SILENT
        counted_requests = journal.counted_requests + (journal.waiting_requests if silent else 0)
        ledger_tokens = journal.ledger_prompt_tokens + journal.ledger_completion_tokens
        counted_tokens = journal.counted_prompt_tokens + journal.counted_completion_tokens
        requests = max(0, counted_requests - journal.ledger_requests)
        tokens = max(0, counted_tokens - ledger_tokens)
        return cls(
            journal,
            requests - (journal.surplus_requests or 0) - journal.accepted_requests,
            tokens - (journal.surplus_tokens or 0) - journal.accepted_tokens,
            journal.unjournaled_tokens,
        )

    def accept(self) -> None:
        """Count what is missing or too much at present as explained: it is no drift any more."""
        EngineJournal.objects.filter(pk=self.journal.pk).update(
            accepted_requests=F("accepted_requests") + self.requests,
            accepted_tokens=F("accepted_tokens") + self.tokens,
        )


def drifts() -> list[Drift]:
    """Of each journal that reported lately, or that differs, by engine."""
    now = timezone.now()
    heard = Q(reported_at=None) | Q(reported_at__gte=now - LATELY)
    lacking = Q(ledger_requests__lt=F("counted_requests") + F("waiting_requests")) | Q(
        ledger_prompt_tokens__lt=F("counted_prompt_tokens")
        + F("counted_completion_tokens")
        - F("ledger_completion_tokens")
    )
    beyond = Q(surplus_requests__gt=0) | Q(surplus_tokens__gt=0) | ~Q(unjournaled_tokens=0)
    found = EngineJournal.objects.filter(heard | lacking | beyond)
    return [Drift.of(journal, now) for journal in found.order_by("engine_id", "journal")]


class Group(NamedTuple):
    """What a row of sums is of. Row ids; empty `adapter`: the base model itself."""

    tenant_id: int
    start: datetime
    key_id: int
    adapter: str
    model: str
    base_model: str


class Sums(NamedTuple):
    """Sums over events; the cost in pico-units."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost: int


class Difference(NamedTuple):
    """A row of sums that is not what it should be: what its parts add up to, and what it says."""

    group: Group
    parts: Sums
    kept: Sums


class JournalDifference(NamedTuple):
    """A journal whose sums are not what its events and superseded attempts add up to: requests,
    then prompt, cached and output tokens."""

    journal: str
    events: tuple[int, ...]
    ledger: tuple[int, ...]


_SUMS = ", ".join(f"sum({name}) AS {name}" for name in FIGURES[1:])


def _differing(parts: str, kept: str, start: str) -> str:
    """A query for Differences: `kept` is a table whose rows begin at their `start`."""

    def of(source: str) -> str:
        return ", ".join(f"coalesce({source}.{name}, 0)" for name in FIGURES)

    return f"""
WITH part AS ({parts}), kept AS (
    SELECT *, {start} AS start FROM {kept} WHERE {start} >= %(start)s AND {start} < %(end)s
)
SELECT tenant_id, start, key_id, adapter, model, base_model, {of("part")}, {of("kept")}
FROM part FULL JOIN kept USING (tenant_id, start, key_id, adapter, model, base_model)
WHERE ({of("part")}) <> ({of("kept")})
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
# Events of the time before engines kept journals have an empty one.
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
    """Everything read inside is of one moment, however long it takes. Not inside a transaction."""
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def months(
    since: datetime | None = None, until: datetime | None = None
) -> list[tuple[datetime, datetime]]:
    """The months that have events or sums, start and end, as far as they lie between the two."""
    found = (_month(name) for (name,) in _rows(_MONTHS))
    cut = [(max(start, since or start), min(end, until or end)) for start, end in found]
    return [(start, end) for start, end in cut if start < end]


def _month(name: str) -> tuple[datetime, datetime]:
    year, month = map(int, name.split("_"))
    start = datetime(year, month, 1, tzinfo=UTC)
    return start, month_end(start)


def rollup_differences(start: datetime, end: datetime) -> list[Difference]:
    """The hourly sums of these whole hours that do not agree with the events."""
    return _differences(_HOURS_DIFFER, start, end)


def month_differences(start: datetime, end: datetime) -> list[Difference]:
    """The monthly sums of these whole months that do not agree with the hourly ones."""
    return _differences(_MONTHS_DIFFER, start, end)


def _differences(query: str, start: datetime, end: datetime) -> list[Difference]:
    group, figures = len(Group._fields), len(FIGURES)
    return [
        Difference(
            Group(*row[:group]),
            Sums(*map(int, row[group : group + figures])),
            Sums(*map(int, row[group + figures :])),
        )
        for row in _rows(query, {"start": start, "end": end})
    ]


def journal_differences() -> list[JournalDifference]:
    """The journals whose sums do not agree with the events and superseded attempts."""
    return [
        JournalDifference(journal, tuple(map(int, sums[:4])), tuple(map(int, sums[4:])))
        for journal, *sums in _rows(_JOURNALS)
    ]


def _rows(query: str, values: Mapping[str, datetime] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
