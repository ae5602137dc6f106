"""What an agent has to tell a gateway that is slow to read."""

from __future__ import annotations

import pytest

from inference.agent.outbox import Outbox
from inference.link.wire import Delta, Done, EngineStats, Stats, Step, Usage, Wait, Waits

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
