"""Merging the reports of several gateways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.measuring.history import STEP_S, LoadSample, Point, RequestRate
from inference.gateway.measuring.start_failures import StartFailure
from tenants.fleet.reports import (
    CountedReport,
    GatewayReport,
    ReportedFleet,
    merged,
    merged_counts,
    merged_points,
)

pytestmark = pytest.mark.pure


def engine(id: str, tokens: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "prompt_tokens": tokens,
        "completion_tokens": 0,
        "connected_at": "2026-01-01T00:00:00+00:00",
        "draining": False,
        "running": 0,
    } | fields


def test_no_gateway_tells_of_nothing() -> None:
    assert merged([]) == ReportedFleet()
    assert merged([], ["http://a"]).silent == ["http://a"]


def test_an_engine_of_several_gateways_is_there_once_as_it_was_seen_last() -> None:
    earlier = engine("e1", 10, running=1, draining=True)
    later = engine("e1", 20, running=3, connected_at="2026-01-01T00:00:09+00:00")
    fast, slow = RequestRate(1.0, 2.0), RequestRate(3.0, 4.0)
    reports = [
        GatewayReport([later, engine("e3")], {"e1": fast}, limits_degraded=False),
        GatewayReport([engine("e2"), earlier], {"e1": slow, "e2": slow}, limits_degraded=True),
    ]
    for order in (reports, reports[::-1]):
        found = merged(order)
        assert [one["id"] for one in found.engines] == ["e1", "e2", "e3"]
        one = found.engines[0]
        assert (one["prompt_tokens"], one["running"], one["draining"]) == (20, 3, True)
        assert one["connected_at"] == earlier["connected_at"]
        assert found.rates.keys() == {"e1", "e2"} and found.limits_degraded
    assert (later["draining"], earlier["running"]) == (False, 1), "reports stay as they are"


def test_a_failure_to_start_is_told_until_the_engine_is_connected() -> None:
    def report(*failures: StartFailure, engines: tuple[str, ...] = ()) -> GatewayReport:
        return GatewayReport([engine(id) for id in engines], {}, False, list(failures))

    old, new = (StartFailure("e1", "rack", cause, at) for cause, at in (("old", 1), ("new", 2)))
    other = StartFailure("e2", "rack", "no weights", 1)
    assert merged([report(new, other), report(old)]).start_failures == [new, other]
    assert merged([report(new, other), report(engines=("e1",))]).start_failures == [other]


def test_the_past_has_each_engine_that_any_of_them_saw() -> None:
    rate = RequestRate(1.0, 1.0)
    known, new = LoadSample(rate, 1, 0, 0.5), LoadSample(None, 1, 0, 0.5)
    one = [Point(3.0, {"e1": new}), Point(STEP_S + 3, {"e1": known})]
    other = [Point(7.0, {"e1": known, "e2": new}), Point(2 * STEP_S, {"e2": known})]
    for histories in ([one, other], [other, one]):
        assert merged_points(histories) == [
            Point(0.0, {"e1": known, "e2": new}),
            Point(STEP_S, {"e1": known}),
            Point(2 * STEP_S, {"e2": known}),
        ]
    assert merged_points([]) == []


counts = st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000))


@given(st.lists(counts), st.lists(counts))
def test_what_is_counted_together_counts_once(
    shared: list[dict[str, int]], own: list[dict[str, int]]
) -> None:
    told = [CountedReport(True, one) for one in shared] + [CountedReport(False, one) for one in own]
    found = merged_counts(told)
    for name in "abc":
        together = max((one[name] for one in shared if name in one), default=0)
        apart = sum(one.get(name, 0) for one in own)
        assert found.get(name, 0) == together + apart
