"""Adapters on the engine: loaded, in use, pinned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.scheduler.slots import Slots

pytestmark = pytest.mark.pure


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
    assert not slots.fits("B")
    with pytest.raises(ValueError, match="no active slot"):
        slots.start("B")
    slots.start(None)
    slots.finish(None)
    slots.start("A")
    slots.finish("A")
    assert slots.in_use == {"A": 1}
    assert (slots.uses("A"), slots.uses("B"), slots.unused) == (1, 0, 0)
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


def test_pinned_adapters_stay_and_the_next_idle_one_goes() -> None:
    slots = Slots(active=1, resident=3)
    for adapter in "ABC":
        slots.loaded(adapter)
    assert slots.pin(["A", "B"]) == []
    assert slots.missing_pins() == []
    slots.start("D")
    assert slots.to_evict("D") == ["C"]
    slots.pin(["B"])
    assert slots.to_evict("D") == ["A"]


def test_pins_hold_only_as_far_as_they_leave_room_for_what_is_active() -> None:
    slots = Slots(active=2, resident=3)
    assert slots.pin(["A", "A", "B"]) == ["B"]
    assert slots.missing_pins() == ["A"]
    assert Slots(active=2, resident=2).pin(["A"]) == ["A"]


def test_a_retired_adapter_goes_though_it_is_pinned_and_is_pinned_when_it_is_back() -> None:
    slots = Slots(active=1, resident=2)
    slots.pin(["A"])
    slots.loaded("A")
    slots.retire("A")
    assert slots.to_retire() == ["A"]
    slots.unloaded("A")
    for adapter in "AB":
        slots.loaded(adapter)
    assert slots.to_evict("C") == ["B"]
    slots.pin([])
    assert slots.to_evict("C") == ["A"]


ADAPTER = st.sampled_from("ABCDEFG")


@given(
    st.integers(1, 3),
    st.integers(0, 3),
    st.lists(
        st.one_of(
            st.tuples(st.just("start"), ADAPTER),
            st.tuples(st.just("finish"), ADAPTER),
            st.tuples(st.just("pin"), st.lists(ADAPTER)),
        ),
        max_size=60,
    ),
)
def test_there_is_always_room_and_nothing_in_use_or_pinned_goes(
    active: int, spare: int, events: list[tuple[str, object]]
) -> None:
    slots = Slots(active=active, resident=active + spare)

    def load(adapter: str) -> None:
        kept = slots.in_use.keys() | pinned
        for gone in slots.to_evict(adapter):
            assert gone not in kept
            slots.unloaded(gone)
        slots.loaded(adapter)
        assert len(slots.resident) == active + spare - slots.spare <= active + spare

    pinned: set[str] = set()
    for kind, value in events:
        if kind == "pin":
            wanted = list(dict.fromkeys(value))  # type: ignore[call-overload]
            slots.pin(wanted)
            pinned = set(wanted[:spare])
            for adapter in slots.missing_pins():
                load(adapter)
            assert pinned <= set(slots.resident)
        elif kind == "start" and slots.fits(str(value)):
            slots.start(str(value))
            load(str(value))
        elif kind == "finish" and slots.uses(str(value)):
            slots.finish(str(value))
