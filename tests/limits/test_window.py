"""In no minute does a window admit more than its limit, and it forgets nothing early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.limits.window import GONE_S, WINDOW_S, LimitWindow

pytestmark = pytest.mark.pure


def filled(*seconds_and_amounts: tuple[int, int]) -> LimitWindow:
    window = LimitWindow()
    for second, amount in seconds_and_amounts:
        window.slide(second)
        window.add(amount)
    return window


def test_a_second_counts_until_all_of_it_is_a_minute_ago() -> None:
    window = filled((100, 5))
    window.slide(100 + WINDOW_S)
    assert window.used == 5
    window.slide(100 + GONE_S)
    assert window.used == 0


def test_after_a_long_time_nothing_counts() -> None:
    window = filled((100, 5), (130, 5), (160, 5))
    window.slide(100_000)
    assert window.used == 0
    assert window.empty_at() == 100_000


def test_a_clock_that_steps_back_stands_still() -> None:
    window = filled((100, 5), (50, 3))
    assert window.used == 8
    window.slide(100 + WINDOW_S)
    assert window.used == 8
    window.slide(100 + GONE_S)
    assert window.used == 0


def test_a_clock_that_was_set_back_by_more_than_a_minute_begins_anew() -> None:
    window = filled((1000, 5), (1000 - WINDOW_S, 3))
    assert window.used == 8
    window.slide(1000 - WINDOW_S - 1)
    assert (window.used, window.empty_at()) == (0, 1000 - WINDOW_S - 1)
    window.add(2)
    window.slide(1000)
    assert window.used == 0


def test_giving_back_removes_from_the_second_of_the_use() -> None:
    window = filled((100, 5), (110, 7))
    window.give_back(100, 5)
    assert window.used == 7
    window.slide(100 + GONE_S)
    assert window.used == 7
    window.slide(110 + GONE_S)
    assert window.used == 0


@pytest.mark.parametrize("second", [99, 101])
def test_a_second_gives_back_only_what_is_in_it(second: int) -> None:
    window = filled((100, 5))
    window.give_back(second, 3)
    assert window.used == 5
    window.give_back(100, 30)
    assert window.used == 0


def test_leaves_at_is_when_the_amount_has_left_the_window() -> None:
    window = filled((100, 5), (110, 7), (120, 1))
    leaving = [window.leaves_at(amount) for amount in (1, 5, 6, 12, 13)]
    assert leaving == [s + GONE_S for s in (100, 100, 110, 110, 120)]
    with pytest.raises(ValueError, match="not in the window"):
        window.leaves_at(14)


def test_empty_at_is_when_the_newest_second_leaves() -> None:
    window = filled((100, 5), (110, 7))
    assert window.empty_at() == 110 + GONE_S
    window.give_back(110, 7)
    assert window.empty_at() == 100 + GONE_S
    assert not window.expired(110 + WINDOW_S)
    assert window.expired(110 + GONE_S)


arrivals = st.lists(
    st.tuples(st.integers(0, 40_000), st.integers(0, 9), st.booleans()), max_size=60
)


@given(st.integers(1, 20), arrivals)
def test_no_minute_holds_more_than_the_limit(
    limit: int, steps: list[tuple[int, int, bool]]
) -> None:
    """`steps` are gaps in milliseconds, amounts, and whether the amount is given back. Each asks
    `used` first, as callers do."""
    window, now_ms, let_in = LimitWindow(), 0, list[tuple[int, int]]()
    for gap_ms, amount, give_back in steps:
        now_ms += gap_ms
        window.slide(now_ms // 1000)
        assert 0 <= window.used <= limit
        if window.used + amount <= limit:
            window.add(amount)
            if give_back:
                window.give_back(now_ms // 1000, amount)
            else:
                let_in.append((now_ms, amount))
    for start_ms, _ in let_in:
        minute = (n for at, n in let_in if start_ms <= at < start_ms + WINDOW_S * 1000)
        assert sum(minute) <= limit


@given(arrivals)
def test_used_is_the_sum_of_the_last_61_seconds(steps: list[tuple[int, int, bool]]) -> None:
    window, now_ms, added = LimitWindow(), 0, list[tuple[int, int]]()
    for gap_ms, amount, _ in steps:
        now_ms += gap_ms
        window.slide(now_ms // 1000)
        window.add(amount)
        added.append((now_ms // 1000, amount))
        inside = [(s, n) for s, n in added if s > now_ms // 1000 - GONE_S]
        assert window.used == sum(n for _, n in inside)
        newest = max((s for s, n in inside if n), default=now_ms // 1000 - GONE_S)
        assert window.empty_at() == newest + GONE_S
