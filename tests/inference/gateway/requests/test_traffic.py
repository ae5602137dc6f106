"""The counts of requests by revision."""

from __future__ import annotations

import pytest

from inference.gateway.measuring.measures import DURATION_S
from inference.gateway.measuring.sums import BUCKETS
from inference.gateway.measuring.traffic import CountedTraffic, RevisionTraffic, failed
from inference.link.accounts import Usage
from inference.link.wire import Done, Fault

pytestmark = pytest.mark.pure


def test_first_tokens_fall_into_the_bucket_of_their_time() -> None:
    counted = CountedTraffic()
    for seconds in (0.0, DURATION_S[0], 0.011, DURATION_S[-1], 1e6):
        counted.began("r", seconds)
    (traffic,) = counted.take().values()
    assert [i for i, n in enumerate(traffic.first_tokens) for _ in range(n)] == [
        0, 0, 1, BUCKETS - 2, BUCKETS - 1,
    ]  # fmt: skip
    assert counted.take() == {}


def test_counts_that_could_not_be_written_are_kept() -> None:
    counted = CountedTraffic()
    counted.ended("r", failed=True)
    taken = counted.take()
    counted.ended("r", failed=False)
    counted.began("s", 0.0)
    counted.give_back(taken.items())
    now = counted.take()
    assert (now["r"].requests, now["r"].errors, now["s"].requests) == (2, 1, 0)


@pytest.mark.parametrize(
    ("code", "is_failure"),
    [
        ("engine_failed", True),
        ("server_is_overloaded", False),
        ("no_engine_available", False),
        ("context_length_exceeded", False),
        ("rate_limit_exceeded", False),
        ("of_another_release", True),
    ],
)
def test_only_engine_faults_count_as_failures(code: str, is_failure: bool) -> None:
    assert failed(Done("r", Usage(), fault=Fault(code, "why"))) == is_failure
    assert not failed(Done("r", Usage(), finish_reason="stop"))


def test_traffic_adds_up() -> None:
    one, other = RevisionTraffic(3, 1, [1] * BUCKETS), RevisionTraffic(2, 0, [2] * BUCKETS)
    one.add(other)
    assert one == RevisionTraffic(5, 1, [3] * BUCKETS)
