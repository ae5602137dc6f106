"""What engines say of their journals, made comparable with the ledger. Sans-IO.

Both sides move while they are compared, so each is taken as a bound of the other:

- What an engine counts as acknowledged was committed before: the ledger has at least that.
  True at any time, so whatever is missing shows at once.
- What the ledger had at some moment, an engine has journaled before that moment: it says at least
  that in statistics made afterwards. So a report is judged by what the ledger was seen to have
  when the last one was written, and what it has beyond the journal shows with the next report.

With requests in flight and reports under way neither bound is ever crossed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from inference.link.wire import EngineStats

SETTLED_S = 2.0
"""Longer than statistics of a living engine travel; it sends them once a second."""


class Report(msgspec.Struct, frozen=True):
    """One journal, by columns of `tenants_enginejournal`.

    `surplus` is what the ledger had beyond the journal; None where nobody can tell yet.
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


class Seen(msgspec.Struct, frozen=True):
    """What the ledger had of a journal; `tokens` are prompt and output tokens."""

    journal: str
    requests: int
    tokens: int


class _Heard(msgspec.Struct, frozen=True):
    engine_id: str
    stats: EngineStats
    at: float


class Journals:
    """The latest of each journal. Call `heard` for all statistics, and again and again `take`,
    write the reports, and `written` with what the ledger has."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._seen: Mapping[str, Seen] = {}
        self._seen_at = 0.0

    def __bool__(self) -> bool:
        """Whether there is something to report."""
        return bool(self._heard)

    def heard(self, engine_id: str, stats: EngineStats, now: float) -> None:
        """Statistics came; those of an agent without a journal say nothing."""
        if stats.journal:
            self._heard[stats.journal] = _Heard(engine_id, stats, now)

    def take(self) -> list[Report]:
        """What was heard since the last call."""
        reports = [self._report(heard) for heard in self._heard.values()]
        self._heard.clear()
        return reports

    def written(self, seen: Iterable[Seen], now: float) -> None:
        """The reports are in the database, and this is what the ledger had at that moment."""
        self._seen, self._seen_at = {one.journal: one for one in seen}, now

    def _report(self, heard: _Heard) -> Report:
        all_, unbilled = heard.stats.journaled, heard.stats.unbilled
        surplus_requests, surplus_tokens = self._surplus(heard)
        return Report(
            journal=heard.stats.journal,
            engine_id=heard.engine_id,
            counted_requests=all_.requests - unbilled.requests,
            counted_prompt_tokens=all_.prompt_tokens - unbilled.prompt_tokens,
            counted_cached_tokens=all_.cached_tokens - unbilled.cached_tokens,
            counted_completion_tokens=all_.completion_tokens - unbilled.completion_tokens,
            waiting_requests=unbilled.requests,
            unjournaled_tokens=heard.stats.unjournaled_tokens,
            surplus_requests=surplus_requests,
            surplus_tokens=surplus_tokens,
        )

    def _surplus(self, heard: _Heard) -> tuple[int | None, int | None]:
        seen, journaled = self._seen.get(heard.stats.journal), heard.stats.journaled
        if seen is None or heard.at < self._seen_at + SETTLED_S:
            return None, None
        tokens = journaled.prompt_tokens + journaled.completion_tokens
        return max(0, seen.requests - journaled.requests), max(0, seen.tokens - tokens)
