"""Virtual token counters, and the heap that orders by them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from inference.agent.scheduler.lazy_heap import Ranking
from inference.agent.scheduler.vtc import FIRST_SWEEP, Shares


def test_a_newcomer_is_level_with_the_least_that_waits() -> None:
    shares = Shares()
    shares.wait("a")
    shares.wait("b")
    shares.charge("a", 100)
    shares.charge("b", 300)
    shares.wait("c")
    assert shares.counter("c") == 100
    assert shares.rank("a") < shares.rank("c") < shares.rank("b")


def test_who_comes_back_keeps_what_it_is_ahead() -> None:
    shares = Shares()
    shares.wait("a")
    shares.wait("b")
    shares.charge("b", 300)
    shares.withdraw("b")
    shares.wait("b")
    assert shares.counter("b") == 300


def test_where_nobody_waits_a_newcomer_is_level_with_the_last_that_did() -> None:
    shares = Shares()
    shares.wait("a")
    shares.start("a")
    shares.charge("a", 50)
    assert shares.least == 50
    shares.charge("a", 100)
    shares.wait("b")
    assert shares.counter("b") == 150, "also with what the last one has used since"
    assert shares.counter("never seen") == 150


def test_a_long_answer_of_a_tenant_that_waits_for_nothing_holds_nobody_back() -> None:
    """Or a newcomer would owe nothing for what the others had to wait for."""
    shares = Shares()
    shares.wait("long")
    shares.start("long")
    shares.wait("flood")
    shares.charge("long", 10)
    shares.charge("flood", 10_000)
    shares.wait("new")
    shares.wait("long")
    assert shares.counter("new") == shares.counter("long") == 10_000


def test_who_is_overtaken_for_long_is_owed_no_more_than_the_reach() -> None:
    shares = Shares(reach=1000)
    for tenant in ("wants a slot", "a", "a", "wants a slot"):
        shares.wait(tenant)
    shares.start("a")
    shares.charge("a", 5000)
    shares.start("a")
    shares.wait("new")
    assert shares.least == shares.counter("new") == 4000
    shares.start("wants a slot")
    assert shares.counter("wants a slot") == 4000


def test_an_estimate_that_was_too_high_is_given_back() -> None:
    shares = Shares()
    for tenant in "ab":
        shares.wait(tenant)
    shares.charge("a", 500)
    shares.charge("b", 100)
    assert shares.least == 100
    shares.charge("a", -450)
    assert shares.least == 50
    shares.start("a")
    shares.charge("a", -10)
    assert (shares.counter("a"), shares.least) == (40, 100)


def test_what_others_served_counts_but_no_further_than_the_reach() -> None:
    shares = Shares(reach=1000)
    shares.heard({})
    shares.wait("a")
    shares.charge("a", 100)
    shares.wait("b")
    shares.charge("b", 5000)
    shares.heard({"a": 200, "b": 10, "c": 400, "d": 10_000})
    counters = {tenant: shares.counter(tenant) for tenant in "abcd"}
    assert counters == {"a": 300, "b": 5100, "c": 500, "d": 1100}


def test_where_nobody_waits_the_floor_follows_the_other_engines() -> None:
    shares = Shares(reach=1000)
    for _ in range(10):
        shares.heard({"a": 500, "b": 700})
    assert shares.counter("a") == 5000, "without the floor it would stop at the reach"
    shares.wait("new")
    assert shares.counter("new") == 5000


def test_tenants_are_forgotten_once_that_changes_nothing() -> None:
    shares = Shares()
    shares.wait("base")
    shares.wait("ahead")
    shares.charge("ahead", 10**6)
    shares.withdraw("ahead")
    shares.wait("runs")
    shares.start("runs")
    for i in range(10 * FIRST_SWEEP):
        shares.wait(f"t{i}")
        shares.start(f"t{i}")
        shares.charge(f"t{i}", 1)
        shares.finish(f"t{i}")
        shares.charge("base", 1)
    assert len(shares) <= 2 * FIRST_SWEEP
    assert shares.counter("ahead") == 10**6
    assert shares.counter("runs") == 0


def test_the_number_of_tenants_is_bounded_whoever_is_ahead() -> None:
    shares = Shares(max_tenants=100)
    shares.wait("base")
    for i in range(1000):
        shares.heard({f"t{i}": i + 1})
    assert len(shares) <= 101
    assert shares.counter("t999") == 1000, "those that are ahead the most are kept"
    for i in range(200):
        shares.wait(f"w{i}")
    assert len(shares) >= 201, "nobody who waits is forgotten"


def test_more_can_be_heard_of_at_once_than_is_kept() -> None:
    shares = Shares(max_tenants=100)
    shares.heard({f"t{i}": i + 1 for i in range(1000)})
    assert len(shares) <= 101
    assert shares.least == 1, "who comes now is level with the least of them"


@given(st.lists(st.tuples(st.sampled_from("add discard raise lower".split()), st.integers(0, 5))))
def test_a_ranking_knows_its_first(events: list[tuple[str, int]]) -> None:
    ranks = dict.fromkeys(range(6), 0.0)
    ranking: Ranking[int] = Ranking(lambda key: (ranks[key], key))
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


def test_a_ranking_that_nobody_reads_does_not_grow() -> None:
    ranking: Ranking[str] = Ranking(lambda key: (math.inf if key == "b" else 0.0, 0))
    ranking.add("a")
    for _ in range(10_000):
        ranking.add("b")
        ranking.discard("b")
    assert len(ranking._heap) < 100
