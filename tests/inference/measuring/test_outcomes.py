"""Counts of requests by outcome, and the refusals that are stored one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.measuring import outcomes
from inference.gateway.measuring.measures import DURATION_S
from inference.gateway.measuring.outcomes import (
    MAX_ALIKE,
    MAX_KEPT,
    EndedFigures,
    OutcomeGroup,
    Outcomes,
    OutcomeSums,
    Refusal,
)
from inference.gateway.measuring.sums import BUCKETS, added, bucket_of, percentile_s

pytestmark = pytest.mark.pure

ANSWERED = OutcomeGroup(60, 1, 10, 0, "", "base", "completed", "stop", "", "")
LIMITED = ANSWERED._replace(
    outcome="refused", code="rate_limit_exceeded", limit_kind="requests_per_minute"
)


def refusal(group: OutcomeGroup = LIMITED, id: str = "r") -> Refusal:
    whose = {name: getattr(group, name) for name in OutcomeGroup._fields if name != "minute"}
    return Refusal(
        id=id, started_at=1.5, model="base", surface="api", status=429, message="Too many.",
        total_s=0.01, **whose,
    )  # fmt: skip


def test_counts_add_up_in_their_group() -> None:
    counted = Outcomes()
    counted.note(ANSWERED, EndedFigures(10, 4, 5, 99, 0.015, 2.015), None)
    counted.note(ANSWERED, EndedFigures(1, 0, 1, 1, 0.005, 0.006), None)
    counted.note(ANSWERED._replace(minute=120), EndedFigures(), None)
    tallies, refusals, _ = counted.take()
    tally = tallies[ANSWERED]
    assert (tally.requests, tally.prompt_tokens, tally.cached_tokens) == (2, 11, 4)
    assert (tally.output_tokens, tally.cost) == (6, 100)
    assert (tally.decode_tokens, tally.decode_s) == (4, 2.0)
    assert tally.first_tokens[:3] == [1, 1, 0] and sum(tally.totals) == 2
    assert tallies[ANSWERED._replace(minute=120)] == OutcomeSums(1)
    assert refusals == [] and counted.take() == ({}, [], [])


def test_what_failed_in_mid_answer_counts_its_first_token_and_no_total() -> None:
    counted = Outcomes()
    counted.note(ANSWERED._replace(outcome="failed"), EndedFigures(1, 0, 3, 0, 0.1, None), None)
    (tally,) = counted.take().tallies.values()
    assert sum(tally.first_tokens) == 1 and tally.totals == [] and tally.decode_s == 0


def test_of_many_similar_refusals_some_are_kept_and_all_are_counted() -> None:
    counted = Outcomes()
    for n in range(3 * MAX_ALIKE):
        counted.note(LIMITED, EndedFigures(), refusal(id=f"r{n}"))
    tallies, refusals, _ = counted.take()
    assert tallies[LIMITED].requests == 3 * MAX_ALIKE
    assert [one.id for one in refusals] == [f"r{n}" for n in range(MAX_ALIKE)]
    counted.note(LIMITED, EndedFigures(), refusal())
    assert counted.take().refusals == []  # still the same minute
    later = LIMITED._replace(minute=120)
    counted.note(later, EndedFigures(), refusal(later))
    assert len(counted.take().refusals) == 1


def test_one_key_takes_no_room_from_another_but_the_tenants() -> None:
    counted = Outcomes()
    for key in range(10):
        for n in range(MAX_ALIKE):
            group = LIMITED._replace(key_id=key)
            counted.note(group, EndedFigures(), refusal(group, f"{key}-{n}"))
    other = LIMITED._replace(tenant_id=2)
    counted.note(other, EndedFigures(), refusal(other, "theirs"))
    refusals = counted.take().refusals
    assert len(refusals) == MAX_KEPT + 1 and refusals[-1].id == "theirs"


@pytest.mark.parametrize("outcome", ["completed", "cancelled"])
def test_what_was_not_refused_is_not_kept(outcome: str) -> None:
    counted = Outcomes()
    counted.note(LIMITED._replace(outcome=outcome), EndedFigures(), refusal())
    assert counted.take().refusals == []


def test_counts_that_could_not_be_written_are_kept() -> None:
    counted = Outcomes()
    counted.note(LIMITED, EndedFigures(), refusal(id="first"))
    tallies, refusals, _ = counted.take()
    counted.note(LIMITED, EndedFigures(), refusal(id="second"))
    counted.give_back(tallies.items(), refusals)
    tallies, refusals, _ = counted.take()
    assert tallies[LIMITED].requests == 2
    assert [one.id for one in refusals] == ["first", "second"]


def test_memory_is_bounded_and_what_has_no_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MAX_GROUPS", 2)
    monkeypatch.setattr(outcomes, "MAX_WAITING", 2)
    counted = Outcomes()
    groups = [LIMITED._replace(tenant_id=n) for n in range(4)]
    for group in groups:
        counted.note(group, EndedFigures(), refusal(group))
    assert counted.dropped == 2
    tallies, refusals, _ = counted.take()
    assert list(tallies) == groups[:2] and len(refusals) == 2
    counted.note(groups[3], EndedFigures(), refusal(groups[3], "new"))
    counted.give_back(tallies.items(), refusals)
    assert counted.dropped == 3
    assert [one.id for one in counted.take().refusals] == ["r", "r"]


def test_some_tenants_are_not_counted() -> None:
    counted = Outcomes({"ours"})
    assert not counted.counts("ours") and counted.counts("theirs")


tallies = st.builds(
    OutcomeSums,
    st.integers(0, 9),
    first_tokens=st.just([]) | st.lists(st.integers(0, 9), min_size=BUCKETS, max_size=BUCKETS),
)


@given(tallies, tallies)
def test_tallies_add_up_in_any_order(one: OutcomeSums, other: OutcomeSums) -> None:
    def sum_of(first: OutcomeSums, second: OutcomeSums) -> OutcomeSums:
        found = OutcomeSums(first.requests, first_tokens=list(first.first_tokens))
        found.add(second)
        return found

    assert sum_of(one, other) == sum_of(other, one)


# --- Percentiles ---------------------------------------------------------------------------------


def test_without_requests_there_is_no_percentile() -> None:
    assert percentile_s([], 0.5) is None and percentile_s([0] * BUCKETS, 0.5) is None


@pytest.mark.parametrize(
    ("at", "share", "seconds"),
    [
        (0, 0.5, 0.005),
        (2, 0.5, 0.03),
        (2, 1.0, 0.04),
        (BUCKETS - 1, 0.5, DURATION_S[-1]),
    ],
)
def test_within_a_bucket_requests_are_spread_evenly(at: int, share: float, seconds: float) -> None:
    buckets = [0] * BUCKETS
    buckets[at] = 100
    assert percentile_s(buckets, share) == pytest.approx(seconds)


@given(
    st.lists(st.floats(0, 81), min_size=1, max_size=200),
    st.lists(st.floats(0, 81), max_size=200),
    st.floats(0.01, 1),
)
def test_a_percentile_of_sums_is_in_the_bucket_of_the_exact_one(
    one: list[float], other: list[float], share: float
) -> None:
    def buckets(times: list[float]) -> list[int]:
        found = [0] * BUCKETS
        for seconds in times:
            found[bucket_of(seconds)] += 1
        return found

    times = sorted(one + other)
    exact = times[min(len(times) - 1, max(0, -(-int(share * len(times) * 1e9) // 10**9) - 1))]
    found: Any = percentile_s(added(buckets(one), buckets(other)), share)
    at = bucket_of(exact)
    assert (DURATION_S[at - 1] if at else 0) <= found * 1.000001
    assert found <= DURATION_S[at] * 1.000001
