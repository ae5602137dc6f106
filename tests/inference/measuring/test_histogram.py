"""Histograms as Prometheus has them."""

from __future__ import annotations

import pytest

from inference.gateway.measuring.histogram import Histogram, HistogramExample
from inference.gateway.measuring.measures import DURATION_S

pytestmark = pytest.mark.pure


def test_each_bound_counts_what_is_no_longer() -> None:
    gaps = Histogram(DURATION_S)
    for seconds in (0.005, 0.01, 0.011, 3.0, 500.0):
        gaps.add(seconds)
    buckets = {bound: count for bound, count, _ in gaps.buckets()}
    assert len(buckets) == len(DURATION_S) + 1
    assert [buckets[name] for name in ("0.01", "0.02", "2.56", "5.12", "81.92", "+Inf")] == [
        2, 3, 3, 4, 4, 5,
    ]  # fmt: skip
    assert gaps.total == pytest.approx(503.026)


def test_a_value_may_have_come_several_times() -> None:
    gaps = Histogram((1.0, 2.0))
    gaps.add(1.5, 3)
    assert [count for _, count, _ in gaps.buckets()] == [0, 3, 3]
    assert gaps.total == 4.5


def test_a_bucket_keeps_the_last_of_its_traced_values() -> None:
    gaps = Histogram((1.0, 2.0))
    gaps.add(1.2)
    for trace_id in ("first", "last"):
        gaps.add_example(HistogramExample(trace_id, 1.5, 10.0))
    gaps.add_example(HistogramExample("long", 7.0, 11.0))
    assert gaps.buckets() == [
        ("1", 0, None),
        ("2", 3, HistogramExample("last", 1.5, 10.0)),
        ("+Inf", 4, HistogramExample("long", 7.0, 11.0)),
    ]
