"""Which engine gets a request, given what is warm, loaded and waiting on each."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inference.gateway.routing.choice import HOME_TOKENS, IDLE_TOKENS, MAX_HOLDERS
from inference.gateway.routing.engine_state import (
    EVICTION_TOKENS,
    LOAD_TOKENS,
    LOADS_WITHIN,
    OUTPUT_TOKENS,
    SLOT_TOKENS,
    EngineState,
    Needs,
)
from inference.link.engine_info import AdapterRef, EngineStats, ModelInfo
from inference.link.prefixes import Prefix, hashes_of
from inference.link.wire import Stats, Submit
from inference.link.workload import Workload
from tests.inference.routing.chosen import choose
from tests.inference.samples import MODEL, REF

pytestmark = pytest.mark.pure

LARGE = msgspec.structs.replace(MODEL, kv_tokens=1 << 20, max_loras=2)
PROMPT = Prefix.of([1, 2, 3, 4], [1000, 2000, 3000, 4000])


def engine(id: str, *warm: int, info: ModelInfo = LARGE, **stats: Any) -> EngineState:
    """An engine that holds these beginnings."""
    found = EngineStats(**({"spare": 4} | stats))
    return EngineState(id, info, found, warm=hashes_of(warm))


def fleet(count: int, **stats: Any) -> list[EngineState]:
    return [engine(f"e{at}", **stats) for at in range(count)]


def needs(adapter: AdapterRef | None = None, tenant: str = "acme", tokens: int = 1000) -> Needs:
    return Needs("base", adapter, tenant=tenant, prompt_tokens=tokens)


def submit(wanted: Needs, id: str = "r", **asked: int) -> Submit:
    return Submit(
        id, "chat", b"{}", "m", wanted.tenant, "salt", wanted.adapter,
        workload=Workload(prompt_tokens=wanted.prompt_tokens, **asked), prefix=wanted.prefix,
    )  # fmt: skip


def dispatched(engines: list[EngineState], wanted: Needs) -> str:
    """Choose an engine, record the dispatch there and return its id."""
    id = choose(engines, wanted)
    next(one for one in engines if one.id == id).sent(submit(wanted))
    return id


def names(count: int) -> list[AdapterRef]:
    return [AdapterRef(f"acme/a{at}@{at}", f"{at}") for at in range(count)]


# --- what is warm ---------------------------------------------------------------------------------


def test_a_prompt_goes_where_the_most_of_it_is_warm() -> None:
    engines = [engine("a", 1), engine("b", 1, 2, 3), engine("c")]
    assert choose(engines, replace(needs(), prefix=PROMPT)) == "b"


def test_a_warm_engine_with_a_queue_that_costs_more_than_it_saves_is_passed_over() -> None:
    wanted = replace(needs(), prefix=PROMPT)
    for queued, chosen in ((700, {"b"}), (800 + HOME_TOKENS, {"a", "c"})):
        engines = [engine("a"), engine("b", 1, 2, 3, queued_tokens=queued), engine("c")]
        assert choose(engines, wanted) in chosen


def test_a_prompt_that_was_just_sent_is_followed_by_what_begins_alike() -> None:
    engines = fleet(8)
    first = dispatched(engines, replace(needs(), prefix=PROMPT))
    assert choose(engines, replace(needs(tenant="another"), prefix=PROMPT)) == first


def test_an_engine_loaded_above_the_others_loses_what_is_warm_there() -> None:
    wanted = replace(needs(), prefix=PROMPT)
    for usage, chosen in ((0.1, {"warm"}), (0.3, {"e0", "e1", "e2"})):
        warm = engine("warm", 1, 2, 3, 4, kv_usage=usage)
        assert choose([*fleet(3, kv_usage=0.1), warm], wanted) in chosen


def test_an_idle_fleet_does_not_move_for_small_differences() -> None:
    warm = engine("warm", 1, 2, 3, 4, kv_usage=0.9 * IDLE_TOKENS / LARGE.kv_tokens)
    assert choose([*fleet(3), warm], replace(needs(), prefix=PROMPT)) == "warm"


def test_an_engine_whose_cache_has_no_room_is_passed_over() -> None:
    small = msgspec.structs.replace(LARGE, kv_tokens=8000)
    full = engine("full", 1, 2, info=small, kv_usage=0.95)
    assert choose([full, engine("a")], replace(needs(tokens=4000), prefix=PROMPT)) == "a"


def test_of_many_that_hold_its_beginning_those_that_hold_more_count() -> None:
    engines = [engine(f"e{at}", 1) for at in range(3 * MAX_HOLDERS)]
    engines[MAX_HOLDERS] = engine("more", 1, 2, 3, 4)
    assert choose(engines, replace(needs(), prefix=PROMPT)) == "more"


def test_among_many_that_hold_it_all_chance_decides() -> None:
    engines = [engine(f"e{at}", 1, 2, 3, 4) for at in range(3 * MAX_HOLDERS)]
    for one in engines:
        one.note(Stats(EngineStats(spare=4), loaded=[REF.name]))
    wanted = replace(needs(REF), prefix=PROMPT)
    chosen = {choose(engines, wanted, random.Random(seed)) for seed in range(200)}
    assert len(chosen) > MAX_HOLDERS


# --- adapters -------------------------------------------------------------------------------------


def test_requests_of_one_cold_adapter_go_to_one_engine() -> None:
    engines = fleet(4)
    assert len({dispatched(engines, needs(REF)) for _ in range(4)}) == 1


def test_many_gateways_choose_the_same_engine_for_a_cold_adapter() -> None:
    for adapter in names(20):
        views = [fleet(16) for _ in range(8)]
        assert len({choose(engines, needs(adapter)) for engines in views}) == 1


def test_a_hot_adapter_is_loaded_on_more_engines_and_a_cold_one_is_not() -> None:
    engines, places = fleet(4), Counter[str]()
    for _ in range(100):
        places[dispatched(engines, needs(REF))] += 1
    assert len(places) == 4 and max(places.values()) <= 40
    cold = names(1)[0]
    assert len({dispatched(engines, needs(cold, tokens=10)) for _ in range(4)}) == 1


@pytest.mark.parametrize(
    ("stats", "cost"),
    [
        ({"active": [REF.name]}, 0),
        ({"active": ["x", "y", REF.name]}, 0),
        ({"resident": [REF.name], "active": ["x"]}, 0),
        ({"resident": [REF.name], "active": ["x", "y"]}, SLOT_TOKENS),
        ({"active": ["x"]}, LOAD_TOKENS),
        ({"active": ["x"], "spare": 0}, LOAD_TOKENS + EVICTION_TOKENS),
        ({"active": ["x", "y"], "spare": 0}, LOAD_TOKENS + EVICTION_TOKENS + SLOT_TOKENS),
    ],
)
def test_what_an_adapter_costs_by_its_slots(stats: dict[str, Any], cost: int) -> None:
    assert engine("a", **stats).adapter_cost(REF.name) == cost


def test_an_adapter_that_others_wait_for_costs_less_than_a_load_of_its_own() -> None:
    assert 0 < engine("a", awaited=[REF.name]).adapter_cost(REF.name) < LOAD_TOKENS


def test_an_adapter_that_was_sent_for_is_expected_until_it_is_loaded_or_was_not() -> None:
    one = engine("a")
    one.sent(submit(needs(REF)))
    assert one.adapter_cost(REF.name) < LOAD_TOKENS
    one.note(Stats(EngineStats(spare=4), loaded=[REF.name]))
    assert one.adapter_cost(REF.name) == 0
    one.note(Stats(EngineStats(spare=4), evicted=[REF.name]))
    assert one.adapter_cost(REF.name) == LOAD_TOKENS
    one.sent(submit(needs(REF)))
    for _ in range(LOADS_WITHIN + 1):
        one.note(Stats(EngineStats(spare=4)))
    assert one.adapter_cost(REF.name) == LOAD_TOKENS


# --- homes ----------------------------------------------------------------------------------------


def test_homes_are_spread_and_move_only_with_their_engine() -> None:
    engines, adapters = fleet(10), names(2000)
    before = {adapter.name: choose(engines, needs(adapter)) for adapter in adapters}
    assert max(Counter(before.values()).values()) < 1.3 * len(adapters) / len(engines)
    left = [one for one in engines if one.id != "e3"]
    for adapter in adapters:
        chosen = choose(left, needs(adapter))
        assert chosen == before[adapter.name] or before[adapter.name] == "e3"


def test_a_home_that_is_much_dearer_is_left_for_the_next() -> None:
    home = choose(fleet(8), needs())
    for queued, stays in ((HOME_TOKENS, True), (HOME_TOKENS + 1, False)):
        engines = fleet(8)
        busy = next(one for one in engines if one.id == home)
        busy.note(Stats(EngineStats(queued_tokens=queued)))
        assert (choose(engines, needs()) == home) is stays


def test_requests_without_a_home_go_to_the_less_loaded_of_two() -> None:
    engines = [engine(f"e{at}", kv_usage=at / 10) for at in range(8)]
    rng = random.Random(1)
    chosen = Counter(choose(engines, Needs("base"), rng) for _ in range(2000))
    assert chosen["e0"] > chosen["e3"] > chosen["e6"] > chosen["e7"]
    assert chosen["e0"] < 1000, "figures are old: the best of them does not get everything"


def test_gateways_that_see_the_same_do_not_all_choose_the_same_of_equals() -> None:
    views = [[engine(f"e{at}", 1, 2, 3, 4) for at in range(8)] for _ in range(64)]
    wanted = replace(needs(), prefix=PROMPT)
    chosen = Counter(choose(view, wanted, random.Random(at)) for at, view in enumerate(views))
    assert max(chosen.values()) < 24


# --- prediction -----------------------------------------------------------------------------------


def test_what_was_dispatched_counts_until_the_next_report() -> None:
    one = engine("a", 1)
    wanted = replace(needs(tokens=4000), prefix=PROMPT)
    one.sent(submit(wanted, "r1", max_tokens=100, choices=2))
    assert one.queue == 3000, "a quarter is warm"
    assert one.load == 4000 + 200
    one.sent(submit(needs(tokens=10), "r2"))
    assert one.load == 4200 + 10 + OUTPUT_TOKENS
    one.began(("r2", 1))
    assert (one.queue, one.load) == (3000, 4200 + 10 + OUTPUT_TOKENS)
    one.ended(("r2", 1))
    assert (one.queue, one.load, one.dispatched) == (3000, 4200, 1)
    one.ended(("r1", 1))
    assert (one.queue, one.load, one.dispatched) == (0, 0, 0)
    one.sent(submit(needs(tokens=10)))
    one.note(Stats(EngineStats(queued_tokens=70, kv_usage=0.5)))
    one.began(("r3", 1))
    one.ended(("r3", 1))
    assert (one.queue, one.load) == (70, 70 + LARGE.kv_tokens // 2)


def test_within_a_second_one_gateway_spreads_what_has_no_home() -> None:
    engines = fleet(8)
    chosen = Counter(dispatched(engines, Needs("base", prompt_tokens=500)) for _ in range(400))
    assert max(chosen.values()) < 1.3 * 50


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["send", "report", "die", "join"]))),
    st.integers(0, 1000),
)
def test_a_living_engine_is_chosen_whatever_joins_and_leaves(
    steps: list[tuple[int, str]], seed: int
) -> None:
    """Whatever was warm, loaded or expected on engines that have gone."""
    rng = random.Random(seed)
    engines = {f"e{at}": engine(f"e{at}") for at in range(3)}
    for at, what in steps:
        id, adapter = f"e{at}", names(6)[at]
        if what == "die":
            engines.pop(id, None)
        elif what == "join":
            engines[id] = engine(id)
        elif what == "report" and id in engines:
            engines[id].note(Stats(EngineStats(spare=at), loaded=[adapter.name]))
        elif engines:
            prefix = Prefix.of([at * 10 + i for i in range(1, 4)], [10, 20, 30])
            wanted = replace(needs(adapter), prefix=prefix)
            chosen = choose(engines.values(), wanted, rng)
            assert chosen in engines
            engines[chosen].sent(submit(wanted))
