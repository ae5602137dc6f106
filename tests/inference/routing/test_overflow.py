"""How much overflow engines may get, without a gateway."""

from __future__ import annotations

import pytest

from inference.gateway.routing.engine_state import OUTPUT_TOKENS
from inference.gateway.routing.overflow import KNOWN_S, Overflow, expected_tokens
from inference.link.workload import Workload

pytestmark = pytest.mark.pure

SMALL = Workload(prompt_tokens=30, max_tokens=10)


def test_nothing_overflows_while_the_count_is_unknown_or_old() -> None:
    overflow = Overflow()
    assert not overflow.has_room(SMALL, 100.0)
    overflow.note_left(1000, 100.0)
    assert overflow.has_room(SMALL, 100.0) and overflow.has_room(SMALL, 99.9 + KNOWN_S)
    assert not overflow.has_room(SMALL, 100.0 + KNOWN_S)
    overflow.note_left(0, 200.0)
    assert not overflow.has_room(SMALL, 200.0)


def test_what_runs_counts_until_it_has_ended() -> None:
    overflow = Overflow()
    overflow.note_left(100, 0.0)
    for number in (1, 2):
        assert overflow.has_room(SMALL, 1.0)
        overflow.sent(("r", number), "base", SMALL)
    assert not overflow.has_room(SMALL, 1.0)
    overflow.ended(("another", 1))
    assert not overflow.has_room(SMALL, 1.0)
    overflow.ended(("r", 1))
    assert overflow.has_room(SMALL, 1.0) and overflow.requests == {"base": 2}


def test_an_answer_counts_as_long_as_it_may_be() -> None:
    assert expected_tokens(SMALL) == 40
    assert expected_tokens(Workload(prompt_tokens=5, choices=3, max_tokens=7)) == 26
    assert expected_tokens(Workload(prompt_tokens=5)) == 5 + OUTPUT_TOKENS


def test_a_request_is_due_once_it_has_waited() -> None:
    assert [Overflow(10.0).is_due(waited) for waited in (0.0, 9.9, 10.0)] == [False, False, True]
