"""Virtual token counters, and the heap that orders by them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduler.lazy_heap import LazyHeap
from inference.scheduler.vtc import FIRST_SWEEP, VirtualTokenCounters

pytestmark = pytest.mark.pure


def test_a_newcomer_is_level_with_the_least_that_waits() -> None:
    counters = VirtualTokenCounters()
    counters.wait("a")
    counters.wait("b")
    counters.charge("a", 100)
    counters.charge("b", 300)
    counters.wait("c")
    assert counters.counter("c") == 100
    assert counters.rank("a") < counters.rank("c") < counters.rank("b")


def test_a_returning_tenant_keeps_its_lead() -> None:
    counters = VirtualTokenCounters()
    counters.wait("a")
    counters.wait("b")
    counters.charge("b", 300)
    counters.withdraw("b")
    counters.wait("b")
    assert counters.counter("b") == 300


def test_without_waiting_tenants_a_newcomer_is_level_with_the_last_one() -> None:
    counters = VirtualTokenCounters()
    counters.wait("a")
    counters.start("a")
    counters.charge("a", 50)
    assert counters.least == 50
    counters.charge("a", 100)
    counters.wait("b")
    assert counters.counter("b") == 150, "also with what the last one has used since"
    assert counters.counter("never seen") == 150


def test_a_tenant_that_only_runs_does_not_hold_others_back() -> None:
    """Otherwise a newcomer would owe nothing for the service that others had to wait for."""
    counters = VirtualTokenCounters()
    counters.wait("long")
    counters.start("long")
    counters.wait("flood")
    counters.charge("long", 10)
    counters.charge("flood", 10_000)
    counters.wait("new")
    counters.wait("long")
    assert counters.counter("new") == counters.counter("long") == 10_000


def test_credit_of_an_overtaken_tenant_is_bounded_by_the_reach() -> None:
    counters = VirtualTokenCounters(reach=1000)
    for tenant in ("wants a slot", "a", "a", "wants a slot"):
        counters.wait(tenant)
    counters.start("a")
    counters.charge("a", 5000)
    counters.start("a")
    counters.wait("new")
    assert counters.least == counters.counter("new") == 4000
    counters.start("wants a slot")
    assert counters.counter("wants a slot") == 4000


def test_an_estimate_that_was_too_high_is_given_back() -> None:
    counters = VirtualTokenCounters()
    for tenant in "ab":
        counters.wait(tenant)
    counters.charge("a", 500)
    counters.charge("b", 100)
    assert counters.least == 100
    counters.charge("a", -450)
    assert counters.least == 50
    counters.start("a")
    counters.charge("a", -10)
    assert (counters.counter("a"), counters.least) == (40, 100)


def test_what_others_served_counts_but_no_further_than_the_reach() -> None:
    counters = VirtualTokenCounters(reach=1000)
    counters.served_elsewhere({})
    counters.wait("a")
    counters.charge("a", 100)
    counters.wait("b")
    counters.charge("b", 5000)
    counters.served_elsewhere({"a": 200, "b": 10, "c": 400, "d": 10_000})
    assert {tenant: counters.counter(tenant) for tenant in "abcd"} == {
        "a": 300,
        "b": 5100,
        "c": 500,
        "d": 1100,
    }


def test_where_nobody_waits_the_floor_follows_the_other_engines() -> None:
    counters = VirtualTokenCounters(reach=1000)
    for _ in range(10):
        counters.served_elsewhere({"a": 500, "b": 700})
    assert counters.counter("a") == 5000, "without the floor it would stop at the reach"
    counters.wait("new")
    assert counters.counter("new") == 5000


def test_tenants_are_forgotten_once_that_changes_nothing() -> None:
    counters = VirtualTokenCounters()
    counters.wait("base")
    counters.wait("ahead")
    counters.charge("ahead", 10**6)
    counters.withdraw("ahead")
    counters.wait("runs")
    counters.start("runs")
    for i in range(10 * FIRST_SWEEP):
        counters.wait(f"t{i}")
        counters.start(f"t{i}")
        counters.charge(f"t{i}", 1)
        counters.finish(f"t{i}")
        counters.charge("base", 1)
    assert len(counters) <= 2 * FIRST_SWEEP
    assert counters.counter("ahead") == 10**6
    assert counters.counter("runs") == 0


def test_the_number_of_tenants_is_bounded_whoever_is_ahead() -> None:
    counters = VirtualTokenCounters(max_tenants=100)
    counters.wait("base")
    for i in range(1000):
        counters.served_elsewhere({f"t{i}": i + 1})
    assert len(counters) <= 101
    assert counters.counter("t999") == 1000, "those that are ahead the most are kept"
    for i in range(200):
        counters.wait(f"w{i}")
    assert len(counters) >= 201, "nobody who waits is forgotten"


def test_more_can_be_heard_of_at_once_than_is_kept() -> None:
    counters = VirtualTokenCounters(max_tenants=100)
    counters.served_elsewhere({f"t{i}": i + 1 for i in range(1000)})
    assert len(counters) <= 101
    assert counters.least == 1, "who comes now is level with the least of them"


@given(st.lists(st.tuples(st.sampled_from("add discard raise lower".split()), st.integers(0, 5))))
def test_a_lazy_heap_returns_its_first_item(events: list[tuple[str, int]]) -> None:
    ranks = dict.fromkeys(range(6), 0.0)
    ranking: LazyHeap[int] = LazyHeap(lambda key: (ranks[key], key))
    members: set[int] = set()
    for kind, key in events:
        if kind == "add":
            ranking.add(key)
            members.add(key)
        elif kind == "discard":
            ranking.discard(key)
            members.discard(key)
        elif kind == "raise":
            ranks[key] += 3
        else:
            ranks[key] -= 2
            if key in ranking:
                ranking.add(key)
        first = min(members, key=lambda one: (ranks[one], one), default=None)
        assert (ranking.first(), len(ranking)) == (first, len(members))


def test_an_unread_lazy_heap_does_not_grow() -> None:
    ranking: LazyHeap[str] = LazyHeap(lambda key: (math.inf if key == "b" else 0.0, 0))
    ranking.add("a")
    for _ in range(10_000):
        ranking.add("b")
        ranking.discard("b")
    assert len(ranking._heap) < 100
