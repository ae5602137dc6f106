"""The order in which lines are given to engines."""

from __future__ import annotations

import pytest

from inference.gateway.lines.line_queue import AHEAD, LineQueue

pytestmark = pytest.mark.pure


def test_tenants_take_turns_whatever_they_have_waiting() -> None:
    queue = LineQueue[str]()
    for n in range(4):
        queue.add("a", f"a{n}")
    queue.add("b", "b0")
    assert [queue.next(1) for _ in range(6)] == ["a0", "b0", "a1", "a2", "a3", None]


def test_unbegun_lines_are_bounded_per_engine() -> None:
    queue = LineQueue[int]()
    for n in range(100):
        queue.add("a", n)
    assert sum(queue.next(2) is not None for _ in range(100)) == 2 * AHEAD
    queue.begun()
    assert queue.next(2) is not None and queue.next(2) is None
    assert queue.next(0) is None, "fewer engines, and so many have not begun"


def test_more_lines_may_be_unbegun_if_many_run() -> None:
    queue = LineQueue[int]()
    for n in range(300):
        queue.add("a", n)
    for _ in range(100):
        assert queue.next(1) is not None
        queue.begun()
    assert sum(queue.next(1) is not None for _ in range(100)) == 50
    for _ in range(100):
        queue.ended()
    assert queue.next(1) is None


def test_a_withdrawn_line_is_not_returned() -> None:
    queue = LineQueue[int]()
    for n in range(6):
        queue.add("a" if n % 2 else "b", n)
    assert sorted(queue.withdraw(lambda n: n < 4)) == [0, 1, 2, 3]
    assert [queue.next(1) for _ in range(3)] == [4, 5, None]
    assert not queue.idle
    for _ in range(2):
        queue.begun()
        assert not queue.idle
    for _ in range(2):
        queue.ended()
    assert queue.idle
    queue.add("a", 7)
    assert queue.withdraw(lambda n: True) == [7] and queue.idle
