"""When an agent reports an engine's state to gateways."""

from __future__ import annotations

import pytest

from inference.agent.report_times import NEWS_TOKENS, REPORT_S, SOONER_S, LinkReport, ReportTimes
from inference.link.engine_info import EngineStats

pytestmark = pytest.mark.pure

KV_TOKENS = 1 << 18
IDLE = EngineStats()
LOADED = EngineStats(queued_tokens=NEWS_TOKENS)


def test_a_whole_report_is_due_once_a_second() -> None:
    times = ReportTimes(KV_TOKENS, 10.0)
    assert times.due(IDLE, 10.0 + REPORT_S / 2) is None
    assert times.due(IDLE, 10.0 + REPORT_S) is LinkReport.WHOLE
    assert times.due(IDLE, 10.0 + 1.5 * REPORT_S) is None
    assert times.due(LOADED, 10.0 + 2 * REPORT_S) is LinkReport.WHOLE


def test_a_load_report_is_due_sooner_if_the_load_changed() -> None:
    times = ReportTimes(KV_TOKENS, 0.0)
    assert times.due(LOADED, SOONER_S / 2) is None, "too soon"
    assert times.due(LOADED, SOONER_S) is LinkReport.LOAD
    assert times.due(LOADED, 2 * SOONER_S) is None, "nothing is new"
    moved = EngineStats(kv_usage=NEWS_TOKENS / KV_TOKENS)
    assert times.due(moved, 3 * SOONER_S) is None, "its prompt is computed: it is as loaded"
    assert times.due(IDLE, 4 * SOONER_S) is LinkReport.LOAD
    assert times.due(IDLE, REPORT_S) is LinkReport.WHOLE, "which is not put off by others"
