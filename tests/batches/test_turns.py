"""The order in which lines are given to engines."""

from __future__ import annotations

import pytest

from inference.gateway.lines.turns import AHEAD, Turns

pytestmark = pytest.mark.pure


def test_tenants_take_turns_whatever_they_have_waiting() -> None:
    turns = Turns[str]()
    for n in range(4):
        turns.add("a", f"a{n}")
    turns.add("b", "b0")
    assert [turns.next(1) for _ in range(6)] == ["a0", "b0", "a1", "a2", "a3", None]


def test_so_many_go_to_each_engine_before_it_has_begun() -> None:
    turns = Turns[int]()
    for n in range(100):
        turns.add("a", n)
    assert sum(turns.next(2) is not None for _ in range(100)) == 2 * AHEAD
    turns.begun()
    assert turns.next(2) is not None and turns.next(2) is None
    assert turns.next(0) is None, "fewer engines, and so many have not begun"


def test_where_many_run_more_may_be_unbegun() -> None:
    turns = Turns[int]()
    for n in range(300):
        turns.add("a", n)
    for _ in range(100):
        assert turns.next(1) is not None
        turns.begun()
    assert sum(turns.next(1) is not None for _ in range(100)) == 50
    for _ in range(100):
        turns.ended()
    assert turns.next(1) is None


def test_what_is_withdrawn_is_not_given() -> None:
    turns = Turns[int]()
    for n in range(6):
        turns.add("a" if n % 2 else "b", n)
    assert sorted(turns.withdraw(lambda n: n < 4)) == [0, 1, 2, 3]
    assert [turns.next(1) for _ in range(3)] == [4, 5, None]
    assert not turns.idle
    for _ in range(2):
        turns.begun()
        assert not turns.idle
    for _ in range(2):
        turns.ended()
    assert turns.idle
    turns.add("a", 7)
    assert turns.withdraw(lambda n: True) == [7] and turns.idle
