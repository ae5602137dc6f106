"""The differences between what engines counted and what the ledger has. Plain SQL, without the
models.

`tenants.billing.journals` explains how both sides are made comparable.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta

SILENT = timedelta(hours=1)
"""Engines report every few seconds: one that has been silent for this long is off, or gone."""
LATELY = timedelta(days=30)
"""Each agent that starts with an empty folder creates a journal, which is kept for ever. Journals
without drift are listed for this long after their last report."""


@dataclass(frozen=True, slots=True)
class DriftedJournal:
    """Both sides of one engine's journal; see `tenants.models.EngineJournal`."""

    journal: str
    engine_id: str
    ledger_requests: int
    ledger_prompt_tokens: int
    ledger_cached_tokens: int
    ledger_completion_tokens: int
    counted_requests: int
    counted_prompt_tokens: int
    counted_cached_tokens: int
    counted_completion_tokens: int
    unjournaled_tokens: int
    waiting_requests: int
    surplus_requests: int | None
    surplus_tokens: int | None
    accepted_requests: int
    accepted_tokens: int
    reported_at: datetime | None
    quarantined_requests: int = 0
    """Entries acknowledged to the engine, but not billed (`tenants.billing.quarantine`)."""
    quarantined_tokens: int = 0


_QUARANTINED = ("quarantined_requests", "quarantined_tokens")
_COLUMNS = [field.name for field in fields(DriftedJournal) if field.name not in _QUARANTINED]

JOURNALS = f"""
SELECT {", ".join(_COLUMNS)},
       coalesce(quarantined_requests, 0) AS quarantined_requests,
       coalesce(quarantined_tokens, 0)::bigint AS quarantined_tokens
FROM tenants_enginejournal
LEFT JOIN (
    SELECT journal, count(*) AS quarantined_requests,
           sum(prompt_tokens + completion_tokens) AS quarantined_tokens
    FROM tenants_quarantinedentry WHERE status <> 'billed' GROUP BY journal
) AS quarantined USING (journal)
WHERE reported_at IS NULL OR reported_at >= %s
   OR ledger_requests < counted_requests + waiting_requests
   OR ledger_prompt_tokens + ledger_completion_tokens
      < counted_prompt_tokens + counted_completion_tokens
   OR surplus_requests > 0 OR surplus_tokens > 0 OR unjournaled_tokens <> 0
ORDER BY engine_id, journal
"""
"""The journals that reported since a given time or never, and those that may differ."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What an engine counted and the ledger lacks; negative if the ledger has more.

    `tokens` are prompt and output tokens, `unjournaled_tokens` the output tokens of the engine's
    current run that are not even in its journal. All are 0 in steady state, whatever is in flight.
    Entries waiting in the journal of a silent engine count as missing until it is back; only the
    number of their requests is known. Entries in quarantine that are not billed are not drift.
    """

    journal: DriftedJournal
    requests: int
    tokens: int
    unjournaled_tokens: int

    def __bool__(self) -> bool:
        return bool(self.requests or self.tokens or self.unjournaled_tokens)

    @classmethod
    def of(cls, journal: DriftedJournal, now: datetime) -> Drift:
        silent = journal.reported_at is not None and journal.reported_at < now - SILENT
        counted_requests = journal.counted_requests + (journal.waiting_requests if silent else 0)
        ledger_tokens = journal.ledger_prompt_tokens + journal.ledger_completion_tokens
        counted_tokens = journal.counted_prompt_tokens + journal.counted_completion_tokens
        ledger_requests = journal.ledger_requests + journal.quarantined_requests
        requests = max(0, counted_requests - ledger_requests)
        tokens = max(0, counted_tokens - ledger_tokens - journal.quarantined_tokens)
        return cls(
            journal,
            requests - (journal.surplus_requests or 0) - journal.accepted_requests,
            tokens - (journal.surplus_tokens or 0) - journal.accepted_tokens,
            journal.unjournaled_tokens,
        )
