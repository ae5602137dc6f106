"""What the in-memory state alone must ensure: that it forgets."""

from __future__ import annotations

import pytest

from tenants.limits.commands import (
    Charge,
    CommandDone,
    Granted,
    LimitRefused,
    Release,
    Renew,
    Seed,
    SettleReservation,
    Withdrawn,
)
from tenants.limits.state import LEASE_MS, SWEEP_MS, WITHDRAWN_MS, LimitState
from tests.limits.asking import DAY, NOON, charge, scope

pytestmark = pytest.mark.pure

NOW_MS = NOON * 1000
DAY_MS = 86_400_000
ALL = scope("t1", requests_per_minute=9, tokens_per_day=900, concurrent_streams=9)


def renew(state: LimitState, now_ms: int) -> None:
    assert state.run(Renew("g1", LEASE_MS), now_ms) == CommandDone()


def held_by(state: LimitState) -> dict[str, int]:
    """The number of entries in each of its collections."""
    return {
        name: len(kept)
        for name, kept in vars(state).items()
        if isinstance(kept, dict) and name != "_kinds"
    }


def used(made: Charge, now_ms: int, state: LimitState) -> None:
    assert isinstance(state.run(made, now_ms), Granted)
    state.run(SettleReservation(made.id, 1, 0, 1), now_ms)


def test_expired_counters_are_forgotten() -> None:
    state = LimitState()
    state.run(Seed(DAY, 0, 0), NOW_MS)
    used(charge("r1", ALL), NOW_MS, state)
    state.run(Release("r2"), NOW_MS)
    assert all(held_by(state).values()) or held_by(state)["_reservations"] == 0
    renew(state, NOW_MS + 2 * DAY_MS)
    held = {name: size for name, size in held_by(state).items() if size}
    assert held == {"_leases": 1, "_held": 1}


def test_expired_counters_are_searched_for_once_a_minute() -> None:
    state = LimitState()
    renew(state, NOW_MS)
    used(charge("r1", scope("t1", requests_per_minute=9)), NOW_MS, state)
    renew(state, NOW_MS + SWEEP_MS - 1)
    assert held_by(state)["_counters"] == 1
    renew(state, NOW_MS + 2 * SWEEP_MS)
    assert held_by(state)["_counters"] == 0


def test_a_withdrawn_id_is_refused_for_a_while() -> None:
    state, made = LimitState(), charge("r1", scope("t1", requests_per_minute=9))
    state.run(Release("r1"), NOW_MS)
    assert state.run(made, NOW_MS + WITHDRAWN_MS - 1) == Withdrawn()
    assert isinstance(state.run(made, NOW_MS + WITHDRAWN_MS), Granted)


def test_a_request_may_outlive_the_budget_that_it_belongs_to() -> None:
    state = LimitState()
    state.run(Seed(DAY, 0, 0), NOW_MS)
    state.run(charge("r1", ALL), NOW_MS)
    for step in range(3 * DAY_MS // LEASE_MS * 2):
        renew(state, NOW_MS + step * LEASE_MS // 2)
    assert held_by(state)["_counters"] == held_by(state)["_reservations"] == 1
    assert state.run(SettleReservation("r1", 5, 0, 5), NOW_MS + 3 * DAY_MS) == CommandDone()
    renew(state, NOW_MS + 4 * DAY_MS)
    assert held_by(state)["_counters"] == held_by(state)["_reservations"] == 0


def test_the_final_usage_of_a_long_request_counts_for_others() -> None:
    state, only = LimitState(), scope("t1", tokens_per_minute=100)
    assert isinstance(state.run(charge("r1", only, prompt=10, output=20), NOW_MS), Granted)
    for step in range(10):
        renew(state, NOW_MS + step * SWEEP_MS)
    end_ms = NOW_MS + 10 * SWEEP_MS
    state.run(SettleReservation("r1", 10, 0, 110), end_ms)
    refused = state.run(charge("r2", only, prompt=5, output=10), end_ms)
    assert isinstance(refused, LimitRefused)
    assert refused.used == 90
