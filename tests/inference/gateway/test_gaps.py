"""The histogram of pauses."""

from __future__ import annotations

import pytest

from inference.gateway.fleet.gaps import BOUNDS_S, Gaps

pytestmark = pytest.mark.pure


def test_each_bound_counts_what_is_no_longer() -> None:
    gaps = Gaps()
    for seconds in (0.005, 0.01, 0.011, 3.0, 500.0):
        gaps.add(seconds)
    buckets = dict(gaps.buckets())
    assert len(buckets) == len(BOUNDS_S) + 1
    assert [buckets[name] for name in ("0.01", "0.02", "2.56", "5.12", "81.92", "+Inf")] == [
        2, 3, 3, 4, 4, 5,
    ]  # fmt: skip
    assert gaps.total_s == pytest.approx(503.026)
