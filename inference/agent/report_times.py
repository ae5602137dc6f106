"""When gateways are told how an engine is: once a second, and sooner where its load changed."""

from __future__ import annotations

from enum import Enum

from inference.link.wire import EngineStats

REPORT_S = 1.0
SOONER_S = 0.2
"""Several gateways send to an engine at a time, and each sees what the others sent only when the
engine says so: with 16 of them, a second is long enough for all to fill the same engines."""
NEWS_TOKENS = 2048
"""A request's, about: by less than that no engine becomes better than another."""


class Report(Enum):
    """What to say now."""

    WHOLE = "whole"
    LOAD = "load"
    """How loaded it is, between two whole ones."""


class ReportTimes:
    """`due` says whether a report is; it is taken to be made then."""

    def __init__(self, kv_tokens: int, now: float) -> None:
        self._kv_tokens = kv_tokens
        self._whole_at = self._at = now
        self._load = 0

    def due(self, stats: EngineStats, now: float) -> Report | None:
        """What is to be said at this moment, in seconds, by an engine that is so."""
        load = int(stats.kv_usage * self._kv_tokens) + stats.queued_tokens
        if now - self._whole_at >= REPORT_S:
            report, self._whole_at = Report.WHOLE, now
        elif now - self._at >= SOONER_S and abs(load - self._load) >= NEWS_TOKENS:
            report = Report.LOAD
        else:
            return None
        self._at, self._load = now, load
        return report
