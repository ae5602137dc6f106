"""Makes what engines report of their journals comparable with the ledger. Sans-IO.

Both sides change while they are compared, so each is taken as a bound of the other:

- What an engine counts as acknowledged was committed before: the ledger has at least that.
  This holds at any time, so whatever is missing shows at once.
- What the ledger had at some moment, an engine had journaled before that moment: statistics that it
  makes afterwards include at least that. So a report is compared with what the ledger had when the
  previous one was written, and what the ledger has beyond the journal shows with the next report.

Neither bound is ever crossed by requests in flight or reports under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from inference.link.engine_info import EngineStats

SETTLED_S = 2.0
"""Longer than the statistics of a live engine, which sends them once a second, are under way."""


class JournalReport(msgspec.Struct, frozen=True):
    """One journal, by columns of `tenants_enginejournal`.

    The `surplus` is what the ledger had beyond the journal; None while it is not known.
    """

    journal: str
    engine_id: str
    counted_requests: int
    counted_prompt_tokens: int
    counted_cached_tokens: int
    counted_completion_tokens: int
    waiting_requests: int
    unjournaled_tokens: int
    surplus_requests: int | None
    surplus_tokens: int | None


class LedgerSums(msgspec.Struct, frozen=True):
    """What the ledger had of a journal; `tokens` are prompt and output tokens."""

    journal: str
    requests: int
    tokens: int


class _JournalStats(msgspec.Struct, frozen=True):
    engine_id: str
    stats: EngineStats
    at: float


class Journals:
    """The latest statistics of each journal. Call `note` with all statistics; from time to time
    call `take`, write the reports, and call `written` with what the ledger has."""

    def __init__(self) -> None:
        self._latest: dict[str, _JournalStats] = {}
        self._ledger: Mapping[str, LedgerSums] = {}
        self._ledger_at = 0.0

    def __bool__(self) -> bool:
        """Whether there is something to report."""
        return bool(self._latest)

    def note(self, engine_id: str, stats: EngineStats, now: float) -> None:
        """Note an engine's statistics, unless its agent has no journal."""
        if stats.journal:
            self._latest[stats.journal] = _JournalStats(engine_id, stats, now)

    def take(self) -> list[JournalReport]:
        """Reports of the statistics since the last call."""
        reports = [self._report(latest) for latest in self._latest.values()]
        self._latest.clear()
        return reports

    def written(self, sums: Iterable[LedgerSums], now: float) -> None:
        """Note that the reports are in the database, and what the ledger had at that moment."""
        self._ledger, self._ledger_at = {one.journal: one for one in sums}, now

    def _report(self, latest: _JournalStats) -> JournalReport:
        all_, unbilled = latest.stats.journaled, latest.stats.unbilled
        surplus_requests, surplus_tokens = self._surplus(latest)
        return JournalReport(
            journal=latest.stats.journal,
            engine_id=latest.engine_id,
            counted_requests=all_.requests - unbilled.requests,
            counted_prompt_tokens=all_.prompt_tokens - unbilled.prompt_tokens,
            counted_cached_tokens=all_.cached_tokens - unbilled.cached_tokens,
            counted_completion_tokens=all_.completion_tokens - unbilled.completion_tokens,
            waiting_requests=unbilled.requests,
            unjournaled_tokens=latest.stats.unjournaled_tokens,
            surplus_requests=surplus_requests,
            surplus_tokens=surplus_tokens,
        )

    def _surplus(self, latest: _JournalStats) -> tuple[int | None, int | None]:
        ledger, journaled = self._ledger.get(latest.stats.journal), latest.stats.journaled
        if ledger is None or latest.at < self._ledger_at + SETTLED_S:
            return None, None
        tokens = journaled.prompt_tokens + journaled.completion_tokens
        return max(0, ledger.requests - journaled.requests), max(0, ledger.tokens - tokens)
