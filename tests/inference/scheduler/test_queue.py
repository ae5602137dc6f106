"""Admission: order, bounds, sequences, KV, adapter slots and their limits; without an engine."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.scheduler.capacity import GROWTH_TOKENS, STEP_LOGPROBS
from inference.agent.scheduler.lane import QueuedRequest
from inference.agent.scheduler.queue import LANE_PRIORITY, LEEWAY, LOOK_AHEAD, Queue
from inference.agent.scheduler.slots import Slots
from inference.agent.scheduler.wait_estimate import DEFAULT_WAIT_S, LONGEST_WAIT_S
from inference.errors import InvalidRequest, Overloaded
from inference.link.workload import Workload

pytestmark = pytest.mark.pure

PATIENCE_S = 1.0
BATCH_PATIENCE_S = 30.0


def queue(active: int = 2, running: int = 8, **bounds: object) -> Queue:
    slots = Slots(active=active, resident=max(active, 4))
    bounds = {"patience_s": PATIENCE_S, "batch_patience_s": BATCH_PATIENCE_S} | bounds
    return Queue(slots, max_running=running, **bounds)  # type: ignore[arg-type]


def request(id: str, tenant: str, adapter: str | None, **fields: Any) -> QueuedRequest:
    asked = {name: fields.pop(name) for name in Workload.__struct_fields__ if name in fields}
    return QueuedRequest(id, tenant, adapter, Workload(**asked), **fields)


def push(
    q: Queue,
    *ids: str,
    tenant: str = "acme",
    adapter: str | None = None,
    now: float = 0.0,
    **fields: Any,
) -> None:
    for id in ids:
        q.push(request(id, tenant, adapter, **fields), now)


def generated(q: Queue, id: str, tokens: int, *, prompt: int = 1, cached: int = 0) -> None:
    q.progress(id, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=tokens)


# --- prompts that are computed -------------------------------------------------------------------


def test_long_prompts_are_computed_one_at_a_time_and_short_ones_go_before() -> None:
    q = queue(step_tokens=100)
    push(q, "a1", "a2", tenant="a", prompt_tokens=101)
    push(q, "b1", tenant="b", prompt_tokens=500)
    push(q, "c1", "c2", tenant="c", prompt_tokens=100)
    assert sorted(q.admit(0.0)) == ["a1", "c1", "c2"]
    generated(q, "a1", 0, prompt=101)
    assert q.admit(PATIENCE_S) == []  # not even after their patience
    generated(q, "a1", 1, prompt=101)
    assert q.admit(PATIENCE_S) == ["b1"]
    q.finish("b1", PATIENCE_S)  # its client left
    assert q.admit(PATIENCE_S) == ["a2"]


def test_prompts_computed_a_few_at_a_time_hold_up_no_other() -> None:
    q = queue(step_tokens=100, kv_tokens=1000)
    push(q, "a1", "a2", tenant="a", prompt_tokens=5000, max_tokens=0, at_once=100)
    push(q, "b1", tenant="b", prompt_tokens=5000, max_tokens=0, at_once=100)
    push(q, "c1", tenant="c", prompt_tokens=50)
    assert sorted(q.admit(0.0)) == ["a1", "b1"], "two steps' worth of prompts"
    generated(q, "a1", 0, prompt=100)
    assert q.admit(0.0) == ["c1", "a2"], "each is charged for all, and holds a step's worth"
    generated(q, "a1", 0, prompt=4000)
    generated(q, "b1", 0, prompt=100)
    generated(q, "a2", 0, prompt=100)
    push(q, "d1", tenant="d", prompt_tokens=500)
    assert q.admit(0.0) == ["d1"], "600 of 1000 tokens are free still"


def test_what_another_engine_generated_is_computed_too() -> None:
    q = queue(step_tokens=100)
    push(q, "moved", tenant="a", prompt_tokens=50, generated=60, paid=110)
    push(q, "long", tenant="b", prompt_tokens=101)
    assert q.admit(0.0) == ["moved"]
    generated(q, "moved", 60, prompt=50)
    assert q.admit(0.0) == []
    generated(q, "moved", 61, prompt=50)
    assert q.admit(0.0) == ["long"]


def test_short_prompts_wait_while_two_steps_of_them_are_to_be_computed() -> None:
    q = queue(step_tokens=100)
    push(q, *"abcdef", prompt_tokens=80)
    assert q.admit(0.0) == ["a", "b", "c"]
    generated(q, "b", 1, prompt=80)
    generated(q, "b", 2, prompt=80)
    assert q.admit(0.0) == ["d"]
    push(q, "long", tenant="b", prompt_tokens=101)
    assert q.admit(0.0) == ["long"]


# --- sequences -----------------------------------------------------------------------------------


def test_a_position_counts_requests_ahead_by_current_counters() -> None:
    q = queue(running=1)
    push(q, "a1", "a2", "a3", tenant="a", prompt_tokens=100)
    assert q.admit(0.0) == ["a1"]
    push(q, "b1", "b2", tenant="b")
    generated(q, "a1", 50, prompt=100)
    push(q, "batch", tenant="c", lane="batch")
    assert q.positions(["a1", "a2", "a3", "b1", "b2", "batch", "unknown"]) == {
        "b1": 1,
        "a2": 2,  # after b1, because a's counter is ahead
        "b2": 3,  # after a request of each tenant
        "a3": 4,
        "batch": 5,
    }
    assert q.positions([]) == {}


def test_positions_give_the_order_of_equal_tenants() -> None:
    q = queue(running=1)
    for number in range(3):
        push(q, *(f"{tenant}{number}" for tenant in "a"), tenant="a", prompt_tokens=10)
        push(q, *(f"{tenant}{number}" for tenant in "b"), tenant="b", prompt_tokens=10)
    ids = [f"{tenant}{number}" for number in range(3) for tenant in "ab"]
    positions = q.positions(ids)
    order = []
    for _ in ids:
        (id,) = q.admit(0.0)
        order.append(id)
        q.finish(id, 0.0)
    assert sorted(positions, key=positions.__getitem__) == order
    assert sorted(positions.values()) == [1, 2, 3, 4, 5, 6]


def test_positions_count_no_more_than_the_waiting_requests() -> None:
    q = queue(running=1)
    push(q, *(f"a{number}" for number in range(20)), tenant="a")
    push(q, "b1", tenant="b")
    assert q.positions(["a19", "b1"]) == {"a19": 21, "b1": 2}


# --- order and bounds ----------------------------------------------------------------------------


def test_requests_of_a_tenant_start_in_order_up_to_the_limit() -> None:
    q = queue(running=2)
    push(q, "a", "b", "c")
    assert q.admit(0.0) == ["a", "b"]
    assert (q.running, len(q)) == (2, 1)
    q.finish("a", 0.0)
    assert q.admit(0.0) == ["c"]


def test_the_tenant_that_got_least_goes_next() -> None:
    q = queue(running=1)
    push(q, "a1", "a2", "a3", tenant="a", prompt_tokens=10)
    push(q, "b1", "b2", tenant="b", prompt_tokens=100)
    order = []
    for _ in range(5):
        (id,) = q.admit(0.0)
        order.append(id)
        q.finish(id, 0.0)
    assert order == ["a1", "b1", "a2", "a3", "b2"]


def test_output_and_weight_count_and_what_the_cache_held_does_not() -> None:
    q = queue(running=2)
    push(q, "a1", "a2", tenant="a", prompt_tokens=1000)
    push(q, "b1", "b2", tenant="b", prompt_tokens=1000, weight=4.0)
    assert q.admit(0.0) == ["a1", "b1"]
    generated(q, "a1", 100, prompt=1100, cached=1050)  # 150
    generated(q, "b1", 200, prompt=600, cached=0)  # 800 / 4
    for id in ("a1", "b1"):
        q.finish(id, 0.0)
    assert q.admit(0.0) == ["a2", "b2"]
    assert q.gained() == {"a": 150, "b": 200}


def test_tenants_with_estimates_of_zero_still_take_turns() -> None:
    q = queue(running=2)
    push(q, "a1", "a2", tenant="a")
    push(q, "b1", "b2", tenant="b")
    assert q.admit(0.0) == ["a1", "b1"]


def test_a_request_cancelled_before_its_prompt_was_counted_is_charged_the_estimate() -> None:
    q = queue()
    push(q, "a", prompt_tokens=70)
    q.admit(0.0)
    q.progress("a", prompt_tokens=0, cached_tokens=0, completion_tokens=0)
    assert q.gained() == {}
    q.finish("a", 0.0)
    assert q.gained() == {"acme": 70}


def test_a_tenant_that_keeps_cancelling_goes_after_one_that_streams() -> None:
    """A cached prompt and one token cost nearly nothing, but starting and ending a request do."""
    q = queue(running=2)
    push(q, "stream", "next", tenant="a", prompt_tokens=20)
    push(q, *(f"b{number}" for number in range(20)), tenant="b", prompt_tokens=20)
    assert q.admit(0.0) == ["stream", "b0"]
    generated(q, "stream", 100, prompt=20)
    started = ["b0"]
    while "next" not in started and len(started) < 10:
        generated(q, started[-1], 1, prompt=20, cached=20)
        q.finish(started[-1], 0.0)
        started += q.admit(0.0)
    assert started == ["b0", "b1", "b2", "b3", "next"]


def test_a_corrected_estimate_brings_a_waiting_tenant_forward() -> None:
    q = queue(running=2)
    push(q, "a1", "a2", "a3", tenant="a", prompt_tokens=500, adapter="A")
    push(q, "b1", "b2", tenant="b", prompt_tokens=100)
    assert q.admit(0.0) == ["a1", "b1"]
    q.finish("b1", 0.0)
    generated(q, "a1", 0, prompt=20)
    assert q.admit(0.0) == ["a2"]


def test_a_full_queue_still_takes_a_share_of_each_tenant() -> None:
    q = queue(running=0, max_queued=8, max_queued_per_tenant=4)
    for i in range(8):
        q.push(QueuedRequest(f"flood{i}", f"noisy{i % 2}", None), 0)
    q.push(QueuedRequest("quiet1", "quiet", None), 0)
    q.push(QueuedRequest("quiet2", "quiet", None), 0)
    with pytest.raises(Overloaded, match="queue is full"):
        q.push(QueuedRequest("quiet3", "quiet", None), 0)  # a third of 8 is 2
    for i in range(6):
        with pytest.raises(Overloaded) if i > 4 else nullcontext():
            q.push(QueuedRequest(f"one{i}", f"quiet{i}", None), 0)
    assert len(q) == 8 + 2 + 5


def test_full_queues_refuse_and_say_which_bound_and_when_to_retry() -> None:
    q = queue(running=0, max_queued=3, max_queued_per_tenant=2)
    push(q, "a", "b")
    with pytest.raises(Overloaded, match="This tenant has 2 waiting requests") as refused:
        push(q, "c")
    assert refused.value.retry_after_s == DEFAULT_WAIT_S
    push(q, "d", tenant="globex")
    with pytest.raises(Overloaded, match=r"queue is full \(3 requests\)"):
        push(q, "e", tenant="globex")
    assert len(q) == 3


def test_bodies_of_waiting_requests_are_bounded_in_all_and_for_each_tenant() -> None:
    q = queue(running=1, max_queued_bytes=400)
    push(q, "running", size=100)
    q.admit(0.0)
    push(q, "a", size=60)
    q.expect(QueuedRequest("b", "acme", "A", size=40))
    with pytest.raises(Overloaded, match="no room for a body of 1 bytes"):
        push(q, "c", size=1)
    push(q, "returned", size=100, generated=1)
    for i in range(2):
        push(q, f"{i}", tenant=f"globex{i}", size=100)
    with pytest.raises(Overloaded, match="no room"):
        push(q, "d", tenant="initech", size=101)
    push(q, "d", tenant="initech", size=80)
    q.finish("a", 0.0)
    q.finish("b", 0.0)
    q.finish("running", 0.0)
    assert q.admit(0.0) == ["returned"]
    push(q, "c", size=100)
    for id in ("c", "d", "0", "1", "returned"):
        q.finish(id, 0.0)
    push(q, *"0123", tenant="globex", size=25)
    assert len(q) == 4


def test_expected_requests_count_as_waiting_until_they_come_or_end() -> None:
    q = queue(running=0, max_queued=3, max_queued_per_tenant=2)
    one, two, three, other = (QueuedRequest(id, "acme", "A") for id in "1234")
    q.expect(one)
    q.push(two, 0.0)
    with pytest.raises(Overloaded, match="This tenant has 2 waiting requests"):
        q.expect(three)
    q.push(one, 0.0)  # it already counts as waiting
    assert len(q) == 2
    q.finish("1", 0.0)
    q.expect(three)
    q.finish("2", 0.0)
    q.expect(other)
    q.finish("3", 0.0)
    q.expect(QueuedRequest("5", "globex", "A"))
    q.push(QueuedRequest("6", "globex", None), 0.0)
    with pytest.raises(Overloaded, match=r"queue is full \(3 requests\)"):
        q.push(QueuedRequest("7", "initech", None), 0.0)


def test_a_waiting_request_can_be_withdrawn() -> None:
    q = queue(running=0)
    push(q, "a")
    q.finish("a", 0.0)
    q.finish("unknown", 0.0)
    generated(q, "unknown", 5)
    assert len(q) == 0


def test_invalid_parameters_are_refused() -> None:
    q = queue()
    push(q, "a")
    with pytest.raises(ValueError, match="here already"):
        push(q, "a")
    with pytest.raises(ValueError, match="weight=0"):
        push(q, "b", weight=0.0)
    with pytest.raises(ValueError, match="reserved=8"):
        queue(running=8, reserved=8)


# --- lanes ---------------------------------------------------------------------------------------


def test_batch_waits_behind_interactive_until_its_patience_is_over() -> None:
    q = queue(running=1)
    push(q, "b1", "b2", tenant="bulk", lane="batch")
    push(q, "i1", "i2", "i3", "i4", prompt_tokens=100)
    assert q.admit(0.0) == ["i1"]
    q.finish("i1", 1.0)
    assert q.admit(BATCH_PATIENCE_S - 1) == ["i2"]
    q.finish("i2", BATCH_PATIENCE_S)
    assert q.admit(BATCH_PATIENCE_S) == ["i3"], "level with it, and it has waited for longer"
    q.finish("i3", BATCH_PATIENCE_S)
    assert q.admit(BATCH_PATIENCE_S) == ["b1"]


def test_batch_runs_on_an_idle_engine_and_delays_its_tenants_chat_by_nothing() -> None:
    q = queue(running=2)
    push(q, "b1", "b2", tenant="a", lane="batch", prompt_tokens=9000)
    assert q.admit(0.0) == ["b1", "b2"]
    push(q, "c1", "c2", tenant="c", prompt_tokens=10)
    push(q, "a1", "a2", tenant="a", prompt_tokens=10)
    for id in ("b1", "b2"):
        q.finish(id, 1.0)
    assert q.admit(1.0) == ["c1", "a1"]
    assert q.gained() == {"batch:a": 18_000}


def test_one_batch_request_per_tenant_is_promoted_at_a_time() -> None:
    q = queue(running=1)
    push(q, "b1", "b2", "b3", tenant="bulk", lane="batch")
    push(q, "i1", tenant="bulk", now=BATCH_PATIENCE_S - 1)
    order = []
    for number in range(5):
        order += q.admit(BATCH_PATIENCE_S)
        if not number:
            push(q, "i2", tenant="bulk", now=BATCH_PATIENCE_S)
        q.finish(order[-1], BATCH_PATIENCE_S)
    assert order == ["i1", "b1", "i2", "b2", "b3"]


def test_when_a_promoted_request_is_withdrawn_the_next_is_promoted() -> None:
    q = queue(running=0)
    push(q, "b1", "b2", "b3", lane="batch")
    assert q.admit(BATCH_PATIENCE_S) == []
    push(q, "i1")
    for id in ("b1", "b3"):
        q.finish(id, BATCH_PATIENCE_S)
    assert q.admit(BATCH_PATIENCE_S) == []
    assert q.positions(["i1", "b2"]) == {"i1": 1, "b2": 2}


def test_a_withdrawn_batch_request_is_not_promoted() -> None:
    q = queue(running=0)
    push(q, "b1", lane="batch")
    q.finish("b1", 1.0)
    assert q.admit(BATCH_PATIENCE_S) == []


def test_priority_is_the_lane_and_then_what_the_tenant_ran_already() -> None:
    q = queue()
    push(q, "a1", "a2", "a3", tenant="a")
    push(q, "c1", tenant="c")
    push(q, "b1", "b2", tenant="a", lane="batch")
    assert len(q.admit(0.0)) == 6
    assert [q.priority(id) for id in ("a1", "a2", "a3", "c1")] == [0, 1, 2, 0]
    assert [q.priority(id) for id in ("b1", "b2")] == [LANE_PRIORITY + 3, LANE_PRIORITY + 4]
    with pytest.raises(KeyError):
        q.priority("unknown")


# --- the reserve ---------------------------------------------------------------------------------


def test_a_flood_leaves_the_reserve_to_newcomers() -> None:
    q = queue(running=4, reserved=1)
    push(q, *"abcdefgh", tenant="flood", prompt_tokens=10)
    assert q.admit(0.0) == ["a", "b", "c"]
    push(q, "n1", "n2", "n3", tenant="new", prompt_tokens=10)
    assert q.admit(0.0) == ["n1"]
    q.finish("n1", 0.0)
    assert q.admit(0.0) == ["n2"], "it runs nothing now, so it is light again"
    q.finish("a", 0.0)
    assert q.admit(0.0) == [], "nobody is light, and the next newcomer finds the sequence"
    q.finish("b", 0.0)
    assert q.admit(0.0) == ["d"]


def test_a_tenant_ahead_of_its_share_waits_however_little_it_runs() -> None:
    q = queue(running=3, reserved=1)
    push(q, "n0", tenant="new")
    q.admit(0.0)
    push(q, *"abcd", tenant="flood")
    assert q.admit(0.0) == ["a"]
    generated(q, "n0", int(LEEWAY) + 100)
    q.finish("n0", 0.0)
    assert q.admit(0.0) == ["b"]
    push(q, "n1", tenant="new")
    assert q.admit(0.0) == []
    generated(q, "a", 200)
    assert q.admit(0.0) == ["n1"]


def test_batch_never_uses_the_reserve() -> None:
    q = queue(running=2, reserved=1)
    push(q, "b1", "b2", lane="batch")
    assert q.admit(0.0) == ["b1"]
    push(q, "i1", tenant="globex")
    assert q.admit(0.0) == ["i1"]


def test_the_reserve_holds_for_kv_as_well() -> None:
    q = queue(running=4, reserved=1, kv_tokens=4000)
    push(q, "a", "b", tenant="flood", prompt_tokens=1400)
    push(q, "c", tenant="flood", prompt_tokens=900)
    assert q.admit(0.0) == ["a", "b"], "c would take of the 1,000 that are reserved"
    push(q, "n", tenant="new", prompt_tokens=900)
    assert q.admit(0.0) == ["n"]


# --- KV ------------------------------------------------------------------------------------------


def test_running_requests_fit_the_kv() -> None:
    q = queue(kv_tokens=1000)
    push(q, "a", "b", "c", prompt_tokens=400)
    assert q.admit(0.0) == ["a", "b"]
    q.finish("a", 0.0)
    generated(q, "b", 600 - 400 - 2 * GROWTH_TOKENS + 1, prompt=400)
    assert q.admit(0.0) == [], "b has grown too much"
    q.finish("b", 0.0)
    assert q.admit(0.0) == ["c"]


def test_a_true_prompt_replaces_the_estimate_and_little_growth_needs_little_room() -> None:
    q = queue(kv_tokens=1000)
    push(q, "a", "b", prompt_tokens=480, max_tokens=20)
    assert q.admit(0.0) == ["a", "b"], "2 x (480 + 20)"
    push(q, "c", tenant="other", prompt_tokens=200, max_tokens=5)
    generated(q, "a", 20, prompt=275, cached=275)
    assert q.admit(0.0) == ["c"], "295 + 500 + 205"


def test_a_request_larger_than_all_of_the_kv_runs_alone() -> None:
    q = queue(kv_tokens=1000)
    push(q, "small", prompt_tokens=100)
    assert q.admit(0.0) == ["small"]
    push(q, "huge", "after", prompt_tokens=5000)
    assert q.admit(0.0) == []
    q.finish("small", 0.0)
    assert q.admit(0.0) == ["huge"]
    q.finish("huge", 0.0)
    assert q.admit(0.0) == ["after"]


def test_a_large_request_is_overtaken_only_while_it_is_patient() -> None:
    q = queue(kv_tokens=1000)
    push(q, "a", tenant="a", prompt_tokens=500)
    q.admit(0.0)
    push(q, "large", tenant="b", prompt_tokens=800)
    push(q, "s1", "s2", tenant="c", prompt_tokens=100, max_tokens=10)
    push(q, "bulk", tenant="d", prompt_tokens=10, max_tokens=10, lane="batch")
    assert q.admit(0.5) == ["s1", "s2", "bulk"]
    push(q, "s3", tenant="c", prompt_tokens=10, max_tokens=10, now=0.5)
    push(q, "bulk2", tenant="d", prompt_tokens=10, max_tokens=10, lane="batch")
    assert q.admit(PATIENCE_S) == []
    for id in ("a", "s1", "s2", "bulk"):
        q.finish(id, PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["large", "s3", "bulk2"]


def test_while_a_flood_waits_for_kv_only_newcomers_go_before_it() -> None:
    q = queue(running=8, reserved=2, kv_tokens=4000)
    push(q, "a", "b", "c", tenant="flood", prompt_tokens=1300)
    assert q.admit(0.0) == ["a", "b"], "c is too large for the 3,000 that are not reserved"
    push(q, "e", "f", "g", tenant="other", prompt_tokens=10, max_tokens=10)
    assert q.admit(PATIENCE_S) == ["e", "f"], "two of eight sequences are its share"
    q.finish("a", PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["c", "g"]


def test_an_impatient_light_request_is_not_overtaken() -> None:
    q = queue(running=8, reserved=2, kv_tokens=4000)
    push(q, "a", "b", tenant="flood", prompt_tokens=1300)
    assert q.admit(0.0) == ["a", "b"]
    push(q, "large", tenant="new", prompt_tokens=1300)
    push(q, "small", tenant="newer", prompt_tokens=10)
    assert q.admit(PATIENCE_S) == []
    q.finish("a", PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["large", "small"]


def test_an_admit_passes_over_a_bounded_number_of_tenants() -> None:
    q = queue(running=100, kv_tokens=1000)
    push(q, "first", prompt_tokens=500)
    q.admit(0.0)
    for i in range(LOOK_AHEAD):
        push(q, f"large{i}", tenant=f"t{i}", prompt_tokens=900)
    push(q, "small", tenant="new", prompt_tokens=10)
    assert q.admit(0.0) == []
    q.finish("large0", 0.0)
    assert q.admit(0.0) == ["small"]


# --- several choices -----------------------------------------------------------------------------


def test_each_choice_of_a_request_takes_a_sequence() -> None:
    q = queue(running=8, reserved=2)
    push(q, "a", "b", tenant="flood", choices=3)
    push(q, "c", tenant="flood")
    assert q.admit(0.0) == ["a", "b"], "six of the sequences are not reserved"
    push(q, "n", tenant="new", choices=2)
    assert q.admit(0.0) == ["n"]
    q.finish("a", 0.0)
    assert q.admit(0.0) == ["c"]
    for id in "bcn":
        q.finish(id, 0.0)
    push(q, "d", tenant="flood", choices=6)
    assert q.admit(0.0) == ["d"]


def test_a_request_for_many_choices_is_overtaken_only_while_patient() -> None:
    q = queue(running=4)
    push(q, "a", "b", tenant="a")
    q.admit(0.0)
    push(q, "many", tenant="b", choices=3)
    push(q, "s1", "s2", tenant="c")
    assert q.admit(0.5) == ["s1", "s2"]
    q.finish("s1", PATIENCE_S)
    push(q, "s3", tenant="c", now=PATIENCE_S)
    assert q.admit(PATIENCE_S) == []
    for id in ("a", "b"):
        q.finish(id, PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["many"]


def test_each_choice_needs_room_to_grow() -> None:
    q = queue(kv_tokens=1000)
    push(q, "a", prompt_tokens=100, choices=4)
    push(q, "b", prompt_tokens=1000 - 100 - 5 * GROWTH_TOKENS + 1)
    assert q.admit(0.0) == ["a"]
    generated(q, "a", 399, prompt=100)  # 100 to go, of each choice
    push(q, "c", tenant="c", prompt_tokens=1000 - 499 - 5 * GROWTH_TOKENS)
    assert q.admit(0.0) == ["c"]


def test_log_probabilities_take_sequences_by_their_share_of_a_step() -> None:
    """So that the log-probabilities of all running requests fit into a step. Other requests take no
    more sequences than before."""
    q, eighth = queue(running=8), STEP_LOGPROBS // 8
    push(q, "few", choices=3, logprobs=1)
    push(q, "many", choices=2, logprobs=eighth)
    push(q, "more", tenant="b", logprobs=3 * eighth + 1)
    push(q, "none", tenant="c")
    assert q.admit(0.0) == ["few", "more", "none"], "3, 4 and 1 of 8 sequences"
    q.finish("few", 0.1)
    assert q.admit(0.1) == ["many"]


def test_log_probabilities_of_one_request_are_bounded() -> None:
    q = queue(running=8, reserved=2)
    most = STEP_LOGPROBS * 6 // 8
    with pytest.raises(InvalidRequest, match=f"{most + 4} log-.* at most {most}") as refused:
        push(q, "a", choices=4, logprobs=most // 4 + 1)
    assert refused.value.param == "logprobs"
    push(q, "b", choices=4, logprobs=most // 4)
    assert q.admit(0.0) == ["b"]


def test_choices_are_bounded_by_the_sequences_that_are_not_reserved() -> None:
    q = queue(running=8, reserved=2)
    for take in (q.expect, lambda request: q.push(request, 0.0)):
        with pytest.raises(InvalidRequest, match=r"7 choices .* at most 6") as refused:
            take(QueuedRequest("a", "acme", None, Workload(choices=7)))
        assert refused.value.param == "n"
    push(q, "b", tenant="acme", choices=6)
    assert q.admit(0.0) == ["b"]
    assert len(q) == 0


# --- adapter slots -------------------------------------------------------------------------------


def test_distinct_adapters_are_bounded_by_the_slots() -> None:
    q = queue(active=2)
    for id, adapter in (("1", "A"), ("2", "B"), ("3", "C"), ("4", "A"), ("5", None)):
        push(q, id, adapter=adapter)
    assert q.admit(0.0) == ["1", "2", "4", "5"]
    q.finish("2", 0.0)
    assert q.admit(0.0) == ["3"]


def test_overtaking_ends_when_patience_does() -> None:
    q = queue(active=1)
    push(q, "a1", adapter="A")
    push(q, "b1", adapter="B")
    assert q.admit(0.0) == ["a1"]
    push(q, "a2", adapter="A", now=0.5)
    assert q.admit(0.5) == ["a2"]
    push(q, "a3", adapter="A", now=1.0)
    assert q.admit(PATIENCE_S) == [], "A is closed to newcomers"
    q.finish("a1", 1.1)
    assert q.admit(1.1) == []
    q.finish("a2", 1.2)
    assert q.admit(1.2) == ["b1"]
    q.finish("b1", 1.3)
    assert q.admit(1.3) == ["a3"]


def test_only_one_adapter_is_closed_for_each_that_waits_and_the_choice_sticks() -> None:
    q = queue(active=2)
    for id, adapter in (("a1", "A"), ("a2", "A"), ("b1", "B"), ("c1", "C")):
        push(q, id, adapter=adapter)
    assert q.admit(0.0) == ["a1", "a2", "b1"]
    push(q, "a3", adapter="A", now=2.0)
    push(q, "b2", adapter="B", now=2.0)
    push(q, "n1", now=2.0)
    assert q.admit(2.0) == ["a3", "n1"], "B runs fewest, so B is closed"
    q.finish("a1", 2.0)
    q.finish("a2", 2.0)
    push(q, "b3", adapter="B", now=2.1)
    push(q, "a4", adapter="A", now=2.1)
    assert q.admit(2.1) == ["a4"], "still B, though it runs fewer now"
    q.finish("b1", 2.2)
    assert q.admit(2.2) == ["c1"]


def test_more_that_wait_than_there_are_slots_close_each_slot_once() -> None:
    q = queue(active=1)
    for id, adapter in (("a1", "A"), ("b1", "B"), ("c1", "C")):
        push(q, id, adapter=adapter)
    assert q.admit(0.0) == ["a1"]
    assert q.admit(PATIENCE_S) == []
    q.finish("a1", PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["b1"]
    q.finish("b1", PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["c1"]


def test_an_emptied_slot_goes_to_the_request_that_waited_for_it() -> None:
    q = queue(active=1)
    push(q, "a1", "a2", tenant="a", adapter="A")
    push(q, "b1", tenant="b", adapter="B", prompt_tokens=500)
    assert q.admit(0.0) == ["a1", "a2"]
    assert q.admit(PATIENCE_S) == []
    push(q, "a3", tenant="a", adapter="A", now=PATIENCE_S)
    q.finish("a1", PATIENCE_S)
    q.finish("a2", PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["b1"]


def test_a_withdrawn_request_gives_up_its_claim_to_a_slot() -> None:
    q = queue(active=1)
    push(q, "a1", tenant="a", adapter="A")
    push(q, "b1", "b2", tenant="b", adapter="B")
    q.admit(0.0)
    assert q.admit(PATIENCE_S) == []
    push(q, "a2", tenant="a", adapter="A", now=PATIENCE_S)
    q.finish("b1", PATIENCE_S)
    assert q.admit(PATIENCE_S) == [], "b2 waits still"
    q.finish("b2", PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["a2"]


def test_an_adapter_that_need_not_leave_after_all_is_open_at_once() -> None:
    q = queue(active=2)
    for id, adapter in (("a1", "A"), ("b1", "B"), ("c1", "C")):
        push(q, id, adapter=adapter)
    assert q.admit(0.0) == ["a1", "b1"]
    assert q.admit(PATIENCE_S) == [], "A is closed"
    push(q, "a2", tenant="new", adapter="A")
    generated(q, "a1", 50)
    q.finish("b1", PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["c1", "a2"]


def test_an_engine_without_adapter_slots_never_starts_one() -> None:
    q = queue(active=0)
    push(q, "a", adapter="A")
    push(q, "n")
    assert q.admit(5.0) == ["n"]


def test_two_tenants_may_wait_for_one_adapter() -> None:
    """The platform's own probe of a tenant's adapter runs under no tenant's name."""
    q = queue(active=1, running=2)
    push(q, "x", tenant="x", adapter="X")
    q.admit(0.0)
    push(q, "a", tenant="a", adapter="A")
    push(q, "probe", tenant="", adapter="A")
    assert q.admit(0.0) == []
    q.finish("x", 0.0)
    assert q.admit(0.0) == ["a", "probe"]


def test_a_tenant_holds_no_more_than_its_quota_while_another_waits() -> None:
    q = queue(active=3, slots_per_tenant=2)
    for adapter in "XYZ":
        push(q, adapter.lower(), tenant="flood", adapter=adapter)
    assert q.admit(0.0) == ["x", "y", "z"], "nobody else wants one"
    push(q, "a", tenant="acme", adapter="A")
    push(q, "x2", tenant="flood", adapter="X")
    push(q, "y2", tenant="flood", adapter="Y")
    assert q.admit(0.0) == ["y2"], "X is closed at once"
    push(q, "w", tenant="flood", adapter="W")
    q.finish("x", 0.0)
    assert q.admit(0.0) == ["a"]
    q.finish("y", 0.0)
    q.finish("y2", 0.0)
    push(q, "b", tenant="globex", adapter="B")
    assert q.admit(0.0) == ["x2"], "below its quota it goes first"
    q.finish("z", 0.0)
    assert q.admit(0.0) == ["b"]


def test_at_its_quota_a_tenant_gets_a_slot_that_no_other_can_use() -> None:
    q = queue(active=2, running=8, kv_tokens=1000, slots_per_tenant=1)
    push(q, "x", tenant="flood", adapter="X", prompt_tokens=300)
    push(q, "large", tenant="acme", adapter="A", prompt_tokens=900)
    push(q, "y", tenant="flood", adapter="Y", prompt_tokens=300)
    assert q.admit(0.0) == ["x", "y"]


def test_a_slot_that_a_flood_cannot_use_yet_goes_to_a_newcomer() -> None:
    q = queue(active=2, running=5, reserved=1, slots_per_tenant=1)
    for id, adapter in (("x", "X"), ("y", "Y"), ("b1", None), ("z", "Z")):
        push(q, id, tenant="flood", adapter=adapter)
    assert q.admit(0.0) == ["x", "b1", "y"]
    assert q.admit(PATIENCE_S) == [], "X is closed for z"
    push(q, "b2", tenant="flood")
    push(q, "o1", "o2", tenant="other")
    assert q.admit(PATIENCE_S) == ["b2", "o1"]
    generated(q, "y", 100)
    q.finish("x", PATIENCE_S)
    q.finish("b1", PATIENCE_S)
    assert q.admit(PATIENCE_S) == ["o2"], "z has a slot, but no sequence"
    push(q, "a", tenant="acme", adapter="A")
    assert q.admit(PATIENCE_S) == ["a"]


def test_a_tenant_at_its_quota_may_share_anothers_slot() -> None:
    q = queue(active=2, slots_per_tenant=1)
    push(q, "x1", tenant="x", adapter="X")
    assert q.admit(0.0) == ["x1"]
    push(q, "x2", tenant="x", adapter="A")
    push(q, "probe", tenant="", adapter="A")
    assert q.admit(0.0) == ["probe", "x2"]


def test_no_flood_of_one_adapter_starves_another() -> None:
    """A new request of A each tick, each running 5 ticks; B starts within patience + 5 ticks."""
    q = queue(active=1)
    ends: dict[str, float] = {}
    push(q, "a", adapter="A")
    ends = dict.fromkeys(q.admit(0.0), 0.5)
    push(q, "b", adapter="B", now=0.05)
    for tick in range(200):
        now = tick / 10
        for id in [id for id, end in ends.items() if end <= now]:
            q.finish(id, now)
            del ends[id]
        push(q, f"a{tick}", adapter="A", now=now)
        for id in q.admit(now):
            if id == "b":
                assert now <= 0.05 + PATIENCE_S + 0.5 + 0.1
                return
            ends[id] = now + 0.5
    pytest.fail("B never started")


# --- waiting times -------------------------------------------------------------------------------


def busy(q: Queue, completions: int, interval_s: float) -> float:
    """Complete requests at a steady pace while others wait; returns the time of the last
    completion."""
    push(q, *(f"r{i}" for i in range(completions + 20)))
    q.admit(0.0)
    now = 0.0
    for i in range(completions):
        now += interval_s
        q.finish(f"r{i}", now)
        q.admit(now)
    return now


def test_an_engine_with_free_sequences_has_no_expected_wait() -> None:
    assert queue().expected_wait_s("acme", "interactive") == 0


def test_the_expected_wait_is_those_before_it_at_the_measured_rate() -> None:
    q = queue(running=1)
    now = busy(q, 100, 0.5)
    assert len(q) == 19
    assert q.expected_wait_s("acme", "interactive") == pytest.approx(20 * 0.5)
    assert q.expected_wait_s("new", "interactive") == pytest.approx(2 * 0.5)
    assert q.expected_wait_s("new", "batch") == pytest.approx(20 * 0.5)
    push(q, "n1", "n2", tenant="new", now=now)
    assert q.expected_wait_s("new", "interactive") == pytest.approx((1 + 2 + 3) * 0.5)


def test_expected_requests_go_before_one_of_their_tenant() -> None:
    q = queue(running=1, max_queued_per_tenant=120)
    now = busy(q, 100, 0.5)
    for i in reversed(range(100, 120)):
        q.finish(f"r{i}", now)
    for i in range(120):
        q.expect(QueuedRequest(f"e{i}", "acme", "A"))
    with pytest.raises(Overloaded) as refused:
        q.expect(QueuedRequest("one more", "acme", "A"))
    assert refused.value.retry_after_s == pytest.approx(121 * 0.5)
    assert q.expected_wait_s("new", "interactive") == 0


def test_batch_waits_no_longer_than_its_patience_and_its_turn() -> None:
    q = queue(running=1, batch_patience_s=3.0)
    busy(q, 100, 0.5)
    assert q.expected_wait_s("new", "batch") == pytest.approx(3 + 2 * 0.5)
    push(q, *"abcd", tenant="new", lane="batch")
    assert q.expected_wait_s("new", "batch") == pytest.approx(3 + (1 + 4 + 5) * 0.5)
    assert q.expected_wait_s("new", "interactive") == pytest.approx(2 * 0.5)


def test_idle_time_does_not_change_the_measured_rate() -> None:
    q = queue(running=1)
    now = busy(q, 100, 0.5)
    for i in range(100, 120):
        now += 0.5
        q.finish(f"r{i}", now)
        q.admit(now)
    later = now + 3600
    push(q, "x", "y", now=later)
    q.admit(later)
    assert q.expected_wait_s("new", "interactive") == pytest.approx(2 * 0.5)


def test_the_expected_wait_is_bounded_by_the_longest_request() -> None:
    q = queue(running=1)
    now = busy(q, 10, 100.0)
    push(q, *(f"x{i}" for i in range(100)), now=now)
    assert q.expected_wait_s("acme", "interactive") == LONGEST_WAIT_S


def test_a_stalled_engine_has_the_longest_expected_wait() -> None:
    q = queue(running=1)
    now = busy(q, 10, 1.0)
    q.admit(now + 30_000)
    assert q.expected_wait_s("acme", "interactive") == LONGEST_WAIT_S


# --- several engines -----------------------------------------------------------------------------


def test_what_another_engine_served_counts_here_in_its_lane() -> None:
    q = queue(running=1)
    push(q, "x", tenant="x")
    q.admit(0.0)
    for tenant in "ab":
        push(q, f"{tenant}1", tenant=tenant, prompt_tokens=10)
        push(q, f"{tenant}2", tenant=tenant, prompt_tokens=10, lane="batch")
    q.served_elsewhere({"a": 1000, "batch:b": 1000})
    order = []
    for id in ("x", "b1", "a1", "a2", "b2"):
        q.finish(id, 0.0)
        order += q.admit(0.0)
    assert order == ["b1", "a1", "a2", "b2"]


def test_gains_told_to_others_are_never_negative() -> None:
    q = queue()
    push(q, "a", prompt_tokens=100)
    q.admit(0.0)
    generated(q, "a", 1, prompt=50)
    assert q.gained() == {"acme": 51}
    generated(q, "a", 1, prompt=50, cached=40)
    assert q.gained() == {}
    generated(q, "a", 60, prompt=50, cached=40)
    assert q.gained() == {"acme": 19}


# --- whatever happens ----------------------------------------------------------------------------


class Watched:
    """A queue with 3 sequences, 2 slots and 1,000 tokens of KV, and checks of its invariants."""

    def __init__(self, queue: Queue, open: int) -> None:
        """`open` is the number of sequences that are not reserved."""
        self.queue, self.open = queue, open
        self.now = 0.0
        self.alive: dict[str, QueuedRequest] = {}
        self.held: dict[str, int] = {}
        """KV tokens of each running request."""

    def act(self, id: str, kind: object, *values: object) -> None:
        match kind, values:
            case "push", (adapter, tenant, prompt, lane, int(choices)):
                choices = min(choices, self.open)
                request = QueuedRequest(
                    id,
                    tenant,  # type: ignore[arg-type]
                    adapter,  # type: ignore[arg-type]
                    Workload(prompt_tokens=prompt, choices=choices),  # type: ignore[arg-type]
                    lane=lane,  # type: ignore[arg-type]
                )
                self.alive[id] = request
                self.queue.push(request, self.now)
            case "finish", (int(which),) if self.alive:
                self.end(sorted(self.alive)[which % len(self.alive)])
            case "progress", (int(which), int(tokens)) if self.held:
                self.grow(sorted(self.held)[which % len(self.held)], tokens)
            case "wait", (float(seconds),):
                self.now += seconds

    def grow(self, id: str, tokens: int) -> None:
        growth = self.alive[id].workload.choices * GROWTH_TOKENS
        self.held[id] = max(self.held[id], 1 + tokens + growth)
        generated(self.queue, id, self.held[id] - 1 - growth)

    def end(self, id: str) -> None:
        del self.alive[id]
        self.held.pop(id, None)
        self.queue.finish(id, self.now)

    def settle(self) -> None:
        for id in self.queue.admit(self.now):
            workload = self.alive[id].workload
            self.held[id] = workload.prompt_tokens + workload.choices * GROWTH_TOKENS
            assert len(self.held) == 1 or sum(self.held.values()) <= 1000
        assert sum(self.alive[id].workload.choices for id in self.held) <= 3
        assert len({self.alive[id].adapter for id in self.held} - {None}) <= 2
        counts = len(self.held), len(self.alive) - len(self.held)
        assert (self.queue.running, len(self.queue)) == counts


@given(
    st.integers(0, 2),
    st.sampled_from([None, 1]),
    st.lists(
        st.one_of(
            st.tuples(
                st.just("push"),
                st.sampled_from([None, "A", "B", "C", "D"]),
                st.sampled_from(["", "x", "y"]),
                st.integers(0, 1200),
                st.sampled_from(["interactive", "batch"]),
                st.sampled_from([1, 1, 1, 2, 3]),
            ),
            st.tuples(st.just("finish"), st.integers(0, 30)),
            st.tuples(st.just("wait"), st.floats(0, 2)),
            st.tuples(st.just("progress"), st.integers(0, 30), st.integers(0, 300)),
        ),
        max_size=80,
    ),
)
def test_limits_hold_whatever_happens_and_everybody_is_served(
    reserved: int, quota: int | None, events: list[tuple[object, ...]]
) -> None:
    made = queue(2, 3, kv_tokens=1000, reserved=reserved, slots_per_tenant=quota)
    watched = Watched(made, 3 - reserved)
    for number, event in enumerate(events):
        watched.act(str(number), *event)
        watched.settle()
    for _ in range(2 * len(watched.alive) + 3):  # end everything that runs, repeatedly
        for id in list(watched.held):
            watched.end(id)
        watched.now += PATIENCE_S
        watched.settle()
    assert not watched.alive, "nobody is left over"
    assert (watched.queue.running, len(watched.queue)) == (0, 0)


# --- requests that go on from another engine -----------------------------------------------------

RETURNED: dict[str, Any] = {"generated": 40, "paid": 140, "prompt_tokens": 100}


def test_a_resumed_request_is_first_in_its_tenants_queue() -> None:
    q = queue(running=1)
    push(q, "runs", tenant="other", prompt_tokens=10_000)
    assert q.admit(0.0) == ["runs"]
    push(q, "a1", "a2", prompt_tokens=1)
    push(q, "returned1", "returned2", **RETURNED)
    push(q, "a3", prompt_tokens=1)
    push(q, "returned3", adapter="x", **RETURNED)
    push(q, "returned4", **RETURNED)
    waiting = ["returned1", "returned2", "returned3", "returned4", "a1", "a2", "a3"]
    assert sorted(waiting, key=q.positions(waiting).__getitem__) == waiting
    started = []
    for done in ["runs", *waiting[:-1]]:
        q.finish(done, 0.0)
        started += q.admit(0.0)
    assert started == waiting


def test_a_resumed_request_does_not_go_before_other_tenants() -> None:
    q = queue(running=1)
    push(q, "a1", tenant="a", prompt_tokens=500)
    assert q.admit(0.0) == ["a1"]
    push(q, "b1", tenant="b")
    push(q, "returned", tenant="a", **RETURNED)
    q.finish("a1", 0.0)
    assert q.admit(0.0) == ["b1"]


def test_a_resumed_request_is_charged_for_new_tokens_only() -> None:
    q = queue()
    push(q, "a1", tenant="a", **RETURNED)
    assert q.admit(0.0) == ["a1"]
    generated(q, "a1", 40, prompt=110, cached=10)
    assert q.gained() == {}
    generated(q, "a1", 45, prompt=110, cached=10)
    q.finish("a1", 0.0)
    assert q.gained() == {"a": 5.0}


def test_bounds_on_waiting_requests_do_not_refuse_a_resumed_one() -> None:
    q = queue(running=1, max_queued=2, max_queued_per_tenant=1)
    push(q, "a1")
    push(q, "returned1", "returned2", "returned3", **RETURNED)
    q.expect(request("returned4", "acme", "x", **RETURNED))
    assert len(q) == 4
    with pytest.raises(Overloaded):
        push(q, "a2")
    with pytest.raises(InvalidRequest):
        push(q, "returned5", choices=99, **RETURNED)


def test_a_resumed_request_holds_kv_for_its_inherited_tokens() -> None:
    q = queue(kv_tokens=GROWTH_TOKENS + 300)
    push(q, "a1", prompt_tokens=100, generated=100, paid=200)
    push(q, "a2", tenant="b", prompt_tokens=100 - GROWTH_TOKENS + 1)
    assert q.admit(0.0) == ["a1"], "a2 finds a token too few"
    q.finish("a1", 0.0)
    assert q.admit(0.0) == ["a2"]
