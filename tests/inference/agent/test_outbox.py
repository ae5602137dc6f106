"""What an agent has to tell a gateway that is slow to read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.outbox import Outbox, residency_change
from inference.gateway.routing import EngineState
from inference.link.wire import Delta, Done, EngineStats, Stats, Step, Usage, Wait, Waits
from tests.inference.samples import MODEL

pytestmark = pytest.mark.pure


def test_deltas_of_a_step_leave_together_before_everything_else() -> None:
    outbox = Outbox()
    outbox.put(Done("z", Usage()))
    outbox.add(Delta("a", "1", 1))
    outbox.add(Delta("b", "2", 1))
    outbox.put(Done("a", Usage()))
    assert outbox.take() == [
        Step([Delta("a", "1", 1), Delta("b", "2", 1)]),
        Done("z", Usage()),
        Done("a", Usage()),
    ]
    assert not outbox
    assert outbox.take() == []


def test_memory_does_not_grow_with_the_number_of_steps() -> None:
    outbox = Outbox()
    for step in range(10_000):
        outbox.add(Delta("a", "x", 1))
        outbox.put(Stats(EngineStats(running=step)))
    step_frame, stats = outbox.take()
    assert step_frame == Step([Delta("a", "x" * 10_000, 10_000)])
    assert stats == Stats(EngineStats(running=9_999))


def test_what_a_request_waits_for_leaves_before_its_output_and_only_as_it_is_now() -> None:
    outbox = Outbox()
    outbox.add(Delta("b", "1", 1))
    outbox.note(Wait("a", "queued", 2))
    outbox.note(Wait("b", "prefill"))
    outbox.note(Wait("a", "queued", 1))
    assert outbox.take() == [
        Waits([Wait("a", "queued", 1), Wait("b", "prefill")]),
        Step([Delta("b", "1", 1)]),
    ]
    assert not outbox


def test_two_attempts_of_a_request_stay_apart() -> None:
    outbox = Outbox()
    outbox.add(Delta("a", "1", 1))
    outbox.add(Delta("a", "2", 1, attempt=2))
    outbox.note(Wait("a", "queued", 1))
    outbox.note(Wait("a", "queued", 2, attempt=2))
    assert outbox.take() == [
        Waits([Wait("a", "queued", 1), Wait("a", "queued", 2, attempt=2)]),
        Step([Delta("a", "1", 1), Delta("a", "2", 1, attempt=2)]),
    ]


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(st.lists(NAMES))
def test_a_peer_that_is_told_what_changed_knows_what_is_there(states: list[list[str]]) -> None:
    peer, told = EngineState("e", MODEL, version=2), list[str]()
    for now in states:
        loaded, evicted = residency_change(told, now)
        peer.note(Stats(EngineStats(), loaded=loaded, evicted=evicted))
        assert list(peer.resident) == now
        told = now


def test_only_what_changed_is_told() -> None:
    assert residency_change(["a", "b", "c"], ["a", "b", "c"]) == ([], [])
    assert residency_change(["a", "b", "c"], ["b", "c", "d"]) == (["d"], ["a"])
    assert residency_change(["a", "b", "c"], ["b", "c", "a"]) == (["a"], []), "used again"
