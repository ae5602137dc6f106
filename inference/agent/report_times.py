"""When an engine's state is reported to gateways: once a second, and sooner if its load changed."""

from __future__ import annotations

from enum import Enum

from inference.link.engine_info import EngineStats

REPORT_S = 1.0
SOONER_S = 0.2
"""Several gateways send to an engine at a time, and each learns what the others sent only from the
engine's reports: with 16 gateways, a second is long enough for all to fill the same engines."""
NEWS_TOKENS = 2048
"""Change of load that is reported sooner: about one request's. A smaller change does not make one
engine a better choice than another."""


class LinkReport(Enum):
    """Which report is due."""

    WHOLE = "whole"
    LOAD = "load"
    """The load alone, between two whole reports."""


class ReportTimes:
    """Decides when a report is due; one that `due` returns counts as made."""

    def __init__(self, kv_tokens: int, now: float) -> None:
        self._kv_tokens = kv_tokens
        self._whole_at = self._at = now
        self._load = 0

    def due(self, stats: EngineStats, now: float) -> LinkReport | None:
        """The report due at `now` (seconds) of an engine in this state; None if none is."""
        load = int(stats.kv_usage * self._kv_tokens) + stats.queued_tokens
        if now - self._whole_at >= REPORT_S:
            report, self._whole_at = LinkReport.WHOLE, now
        elif now - self._at >= SOONER_S and abs(load - self._load) >= NEWS_TOKENS:
            report = LinkReport.LOAD
        else:
            return None
        self._at, self._load = now, load
        return report
