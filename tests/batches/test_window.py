"""Which gateway each line of a batch is sent to, and when it is retried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.lines.frames import (
    MAX_UNBEGUN,
    MAX_UNBEGUN_BYTES,
    TURNS_OF_A_RUN,
    LineAnswer,
)
from inference.link.accounts import first_attempt
from tenants.batches.window import BatchWindow, LineVerdict, OutOfTurns, WindowLine

pytestmark = pytest.mark.pure


def window(*gateways: str) -> BatchWindow:
    made = BatchWindow(1)
    for gateway in gateways or ("g",):
        made.joined(gateway)
    return made


def line(number: int, size: int = 10) -> WindowLine:
    return WindowLine(number, 0, size)


def fill(one: BatchWindow, first: int = 0, now: float = 0.0) -> list[tuple[int, str]]:
    """Send as many lines as may be sent; returns their numbers and gateways."""
    sent: list[tuple[int, str]] = []
    while (gateway := one.gateway(now)) is not None:
        number = first + len(sent)
        one.sent(line(number), gateway)
        sent.append((number, gateway))
    return sent


def limited(number: int, again_s: float = 5.0, code: str = "rate_limit_exceeded") -> LineAnswer:
    return LineAnswer("b", number, 429, again_s=again_s, code=code)


def test_unbegun_lines_are_bounded_per_gateway() -> None:
    one = window("g", "h")
    sent = fill(one)
    assert len(sent) == 2 * MAX_UNBEGUN
    number, gateway = sent[0]
    one.begun(gateway, number)
    one.begun(gateway, number)
    assert fill(one, first=1000) == [(1000, gateway)]


def test_unbegun_bytes_are_bounded_but_one_large_line_may_go() -> None:
    one = window()
    one.sent(line(1, MAX_UNBEGUN_BYTES * 2), "g")
    assert one.gateway(0.0) is None
    one.begun("g", 1)
    assert one.gateway(0.0) == "g"


def test_an_answer_is_accepted_once_per_line() -> None:
    one = window()
    one.sent(line(1), "g")
    said = LineAnswer("b", 1, 200, sent=True)
    assert one.answered("h", said, 0.0) is LineVerdict.STALE
    assert one.answered("g", said, 0.0) is LineVerdict.DONE
    assert one.answered("g", said, 0.0) is LineVerdict.STALE
    assert one.empty and len(fill(one)) == MAX_UNBEGUN


def test_a_line_that_meets_a_limit_waits_and_so_do_the_others() -> None:
    one = window()
    one.sent(line(1), "g")
    one.sent(line(2), "g")
    assert one.answered("g", limited(1), 0.0) is LineVerdict.AGAIN
    assert one.gateway(4.9) is None and one.next_at(4.9) == 5.0
    assert not one.empty
    one.begun("g", 2)
    assert one.gateway(5.0) == "g"
    again = one.again(5.0)
    assert again is not None and again.number == 1
    assert one.sent(again, "g") == TURNS_OF_A_RUN, "no engine had it"
    assert one.gateway(5.0) == "g", "one had begun, so two may be sent"
    one.sent(line(3), "g")
    assert one.gateway(5.0) is None


def test_limits_never_make_a_line_fail() -> None:
    one = window()
    one.sent(line(1), "g")
    for _ in range(50):
        code = "server_is_overloaded"
        said = LineAnswer("b", 1, 503, again_s=1.0, sent=True, code=code)
        assert one.answered("g", said, 0.0) is LineVerdict.AGAIN
        again = one.again(1.0)
        assert again is not None
        one.sent(again, "g")


def test_a_line_with_which_engines_fail_repeatedly_fails() -> None:
    one = window()
    one.sent(line(1), "g")
    turns = []
    for expected in (LineVerdict.AGAIN, LineVerdict.AGAIN, LineVerdict.DONE):
        said = LineAnswer("b", 1, 502, again_s=1.0, sent=True, code="engine_failed")
        assert one.answered("g", said, 0.0) is expected
        if expected is LineVerdict.AGAIN:
            again = one.again(1.0)
            assert again is not None
            turns.append(one.sent(again, "g"))
    assert turns == [TURNS_OF_A_RUN + 1, TURNS_OF_A_RUN + 2]


def test_lines_of_a_lost_gateway_go_to_another_in_a_higher_turn() -> None:
    one = window("g", "h")
    assert one.sent(line(1), "g") == TURNS_OF_A_RUN
    one.begun("g", 1)
    one.lost("g", 0.0)
    assert one.gateway(0.0) == "h"
    again = one.again(0.0)
    assert again is not None and one.sent(again, "h") == TURNS_OF_A_RUN + 1
    assert one.answered("g", LineAnswer("b", 1, 200), 0.0) is LineVerdict.STALE


def test_a_key_that_ended_ends_the_batch() -> None:
    one = window()
    one.sent(line(1), "g")
    said = LineAnswer("b", 1, 401, code="api_key_revoked")
    assert one.answered("g", said, 0.0) is LineVerdict.KEY_ENDED
    one.closed = True
    assert one.empty and one.gateway(0.0) is None and one.next_at(0.0) is None


def test_turns_of_a_later_run_are_higher_and_bounded() -> None:
    last = WindowLine(1, 0, 10, turns=TURNS_OF_A_RUN - 1)
    first, second = BatchWindow(1), BatchWindow(2)
    for one in (first, second):
        one.joined("g")
    assert first.sent(last, "g") < second.sent(line(1), "g")
    with pytest.raises(OutOfTurns):
        first.sent(WindowLine(2, 0, 10, turns=TURNS_OF_A_RUN), "g")
    assert first_attempt(500 * TURNS_OF_A_RUN) < 1 << 31, "the ledger's column holds them"


@given(st.lists(st.tuples(st.sampled_from("sbadlj"), st.integers(0, 5), st.sampled_from("gh"))))
def test_every_line_is_answered_within_the_bounds(events: list[tuple[str, int, str]]) -> None:
    one, known, done = window("g", "h"), dict[int, WindowLine](), set[int]()
    highest: dict[int, int] = {}
    open_gateways = {"g", "h"}
    for event, number, gateway in events:
        if event == "s" and (to := one.gateway(0.0)) is not None and number not in done:
            todo = one.again(0.0)
            if todo is None and number not in known:
                todo = line(number)
            if todo is not None:
                known[todo.number] = todo
                turn = one.sent(todo, to)
                assert turn > highest.get(todo.number, -1)
                highest[todo.number] = turn
        elif event == "b":
            one.begun(gateway, number)
        elif event in "ad":
            again_s = 0.0 if event == "a" else None
            said = LineAnswer(
                "b", number, 200, again_s=again_s, sent=True, code="no_engine_available"
            )
            if one.answered(gateway, said, 0.0) is LineVerdict.DONE:
                done.add(number)
        elif event == "l" and gateway in open_gateways:
            open_gateways.discard(gateway)
            one.lost(gateway, 0.0)
        elif event == "j" and gateway not in open_gateways:
            open_gateways.add(gateway)
            one.joined(gateway)
    assert one.empty == (known.keys() == done)


def test_it_says_when_to_look_again() -> None:
    one = window()
    assert one.next_at(0.0) is None
    one.sent(line(1), "g")
    one.begun("g", 1)
    assert one.answered("g", limited(1, 5.0), 0.0) is LineVerdict.AGAIN
    held_until = one.next_at(0.0)
    assert held_until is not None
    assert one.next_at(held_until) is not None
