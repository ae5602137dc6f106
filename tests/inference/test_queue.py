"""Admission: order, limits, adapter slots and the bound on overtaking, without an engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.queue import Queue
from inference.agent.slots import Slots
from inference.errors import Overloaded

PATIENCE_S = 1.0


def queue(active: int = 2, running: int = 8, queued: int = 100) -> Queue:
    slots = Slots(active=active, resident=max(active, 4))
    return Queue(slots, max_running=running, max_queued=queued, patience_s=PATIENCE_S)


def test_requests_start_in_order_up_to_the_limit() -> None:
    q = queue(running=2)
    for id in "abc":
        q.push(id, None, 0.0)
    assert q.admit(0.0) == ["a", "b"]
    assert (q.running, len(q)) == (2, 1)
    q.finish("a")
    assert q.admit(0.0) == ["c"]


def test_a_full_queue_refuses_and_says_when_to_retry() -> None:
    q = queue(running=0, queued=1)
    q.push("a", None, 0.0)
    with pytest.raises(Overloaded) as refused:
        q.push("b", None, 0.0)
    assert refused.value.retry_after_s
    assert len(q) == 1


def test_a_waiting_request_can_be_withdrawn() -> None:
    q = queue(running=0)
    q.push("a", None, 0.0)
    q.finish("a")
    q.finish("unknown")
    assert len(q) == 0


def test_distinct_adapters_are_bounded_by_the_slots() -> None:
    q = queue(active=2)
    for id, adapter in (("1", "A"), ("2", "B"), ("3", "C"), ("4", "A"), ("5", None)):
        q.push(id, adapter, 0.0)
    assert q.admit(0.0) == ["1", "2", "4", "5"]
    q.finish("2")
    assert q.admit(0.0) == ["3"]


def test_overtaking_ends_when_patience_does() -> None:
    q = queue(active=1)
    q.push("a1", "A", 0.0)
    q.push("b1", "B", 0.0)
    q.push("a2", "A", 0.5)
    assert q.admit(0.5) == ["a1", "a2"]
    q.push("a3", "A", 1.0)
    assert q.admit(PATIENCE_S) == [], "A is closed to requests behind b1"
    q.finish("a1")
    assert q.admit(1.1) == []
    q.finish("a2")
    assert q.admit(1.2) == ["b1"]
    q.finish("b1")
    assert q.admit(1.3) == ["a3"]


def test_only_one_adapter_is_closed_for_each_that_waits_and_the_choice_sticks() -> None:
    q = queue(active=2)
    for id, adapter in (("a1", "A"), ("a2", "A"), ("b1", "B"), ("c1", "C")):
        q.push(id, adapter, 0.0)
    assert q.admit(0.0) == ["a1", "a2", "b1"]
    q.push("a3", "A", 2.0)
    q.push("b2", "B", 2.0)
    q.push("n1", None, 2.0)
    assert q.admit(2.0) == ["a3", "n1"], "B runs fewest, so B is closed"
    q.finish("a1")
    q.finish("a2")
    q.push("b3", "B", 2.1)
    q.push("a4", "A", 2.1)
    assert q.admit(2.1) == ["a4"], "still B, though both run one now"
    q.finish("b1")
    assert q.admit(2.2) == ["c1"]


def test_more_that_wait_than_there_are_slots_close_each_slot_once() -> None:
    q = queue(active=1)
    q.push("a1", "A", 0.0)
    q.push("b1", "B", 0.0)
    q.push("c1", "C", 0.0)
    assert q.admit(0.0) == ["a1"]
    assert q.admit(PATIENCE_S) == []
    q.finish("a1")
    assert q.admit(PATIENCE_S) == ["b1"]
    q.finish("b1")
    assert q.admit(PATIENCE_S) == ["c1"]


def test_an_engine_without_adapter_slots_never_starts_one() -> None:
    q = queue(active=0)
    q.push("a", "A", 0.0)
    q.push("n", None, 0.0)
    assert q.admit(5.0) == ["n"]


def test_no_flood_of_one_adapter_starves_another() -> None:
    """A new request of A each tick, each running 5 ticks; B starts within patience + 5 ticks."""
    q = queue(active=1)
    ends: dict[str, float] = {}
    q.push("b", "B", 0.05)
    for tick in range(200):
        now = tick / 10
        for id in [id for id, end in ends.items() if end <= now]:
            q.finish(id)
            del ends[id]
        q.push(f"a{tick}", "A", now)
        for id in q.admit(now):
            if id == "b":
                assert now <= 0.05 + PATIENCE_S + 0.5 + 0.1
                return
            ends[id] = now + 0.5
    pytest.fail("B never started")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.sampled_from([None, "A", "B", "C", "D"])),
            st.tuples(st.just("finish"), st.integers(0, 30)),
            st.tuples(st.just("wait"), st.floats(0, 2)),
        ),
        max_size=80,
    )
)
def test_limits_hold_whatever_happens_and_everybody_is_served(
    events: list[tuple[str, object]],
) -> None:
    q = queue(active=2, running=3)
    now, pushed, alive = 0.0, 0, {}
    started: set[str] = set()

    def settle() -> None:
        started.update(q.admit(now))
        running = [alive[id] for id in alive if id in started]
        assert len(running) <= 3
        assert len({adapter for adapter in running if adapter}) <= 2

    for kind, value in events:
        if kind == "push":
            alive[str(pushed)] = value
            q.push(str(pushed), value, now)  # type: ignore[arg-type]
            pushed += 1
        elif kind == "finish" and alive:
            id = sorted(alive)[int(value) % len(alive)]  # type: ignore[call-overload]
            del alive[id]
            q.finish(id)
        elif kind == "wait":
            now += float(value)  # type: ignore[arg-type]
        settle()
    for _ in range(len(alive) + 1):  # end what runs, again and again: nobody may be left over
        for id in [id for id in alive if id in started]:
            del alive[id]
            q.finish(id)
        now += PATIENCE_S
        settle()
    assert not alive
    assert (q.running, len(q)) == (0, 0)


def test_slots_evict_the_least_recently_used_that_is_idle() -> None:
    slots = Slots(active=2, resident=2)
    for adapter in "AB":
        slots.loaded(adapter)
    slots.loaded("A")
    assert slots.resident == ["B", "A"]
    assert slots.to_evict("A") == []
    slots.start("B")
    slots.start("C")
    assert slots.to_evict("C") == ["A"]
    slots.unloaded("A")
    slots.loaded("C")
    assert slots.resident == ["B", "C"]


def test_slots_refuse_what_does_not_fit() -> None:
    slots = Slots(active=1, resident=1)
    slots.start("A")
    with pytest.raises(ValueError, match="no active slot"):
        slots.start("B")
    slots.start(None)
    slots.finish(None)
    slots.start("A")
    slots.finish("A")
    assert slots.in_use == {"A": 1}
    with pytest.raises(ValueError, match="active=3"):
        Slots(active=3, resident=2)


def test_a_retired_adapter_goes_once_it_is_unused() -> None:
    slots = Slots(active=1, resident=2)
    slots.retire("never seen")
    slots.start("A")
    slots.loaded("A")
    slots.retire("A")
    assert slots.to_retire() == []
    slots.finish("A")
    assert slots.to_retire() == ["A"]
    slots.unloaded("A")
    assert slots.to_retire() == []
