"""The order and the bounds of held requests, without a gateway."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import NoEngine
from inference.gateway.requests.held import Held, Holding, Request

pytestmark = pytest.mark.pure


def request(id: str, tenant: str = "acme", kind: str = "plain", **fields: object) -> Request:
    given: dict[str, object] = {"base_model": "base", "size": 1} | fields
    return Request(id, tenant, kind=kind, **given)  # type: ignore[arg-type]


def taken(held: Held, aside: set[object] | None = None, now: float = 0.0) -> list[str]:
    """Start every request that may start, and return their ids in order."""
    order = []
    while (first := held.first("base", set(aside or ()), now)) is not None:
        held.start(first.id)
        order.append(first.id)
    return order


def test_tenants_are_served_in_proportion_to_their_weights() -> None:
    held = Held(Holding(1.0))
    for i in range(6):
        held.add(request(f"a{i}", "acme", tokens=100), 0.0)
        held.add(request(f"g{i}", "globex", tokens=100, weight=2.0), 0.0)
    order = taken(held)
    assert Counter(id[0] for id in order[:6]) == {"a": 2, "g": 4}
    assert not held and held.by_base_model == {}


def test_a_tenant_that_comes_later_owes_nothing_and_is_owed_nothing() -> None:
    held = Held(Holding(1.0))
    for i in range(4):
        held.add(request(f"a{i}", tokens=100), 0.0)
    for _ in range(2):
        first = held.first("base", set(), 0.0)
        assert first is not None
        held.start(first.id)
    held.add(request("g0", "globex", tokens=100), 0.0)
    held.add(request("g1", "globex", tokens=100), 0.0)
    assert taken(held) == ["a2", "g0", "a3", "g1"]


def test_a_kind_that_no_engine_takes_is_passed_over() -> None:
    held = Held(Holding(1.0))
    held.add(request("r1", kind="high"), 0.0)
    held.add(request("r2"), 0.0)
    held.add(request("r3", "globex", kind="high"), 0.0)
    assert held.waits("high") and held.waits("plain") and not held.waits("other")
    assert taken(held, {"high"}) == ["r2"]
    assert not held.waits("plain")
    assert taken(held) == ["r3", "r1"], "acme had its turn"
    assert held.first("another", set(), 0.0) is None


def test_batch_waits_behind_and_not_for_ever() -> None:
    held = Held(Holding(60.0, batch_patience_s=30.0))
    for i in range(2):
        held.add(request(f"b{i}", lane="batch"), 0.0)
    held.add(request("i0", "globex"), 1.0)
    assert [one.id for one in [held.first("base", set(), 10.0)] if one] == ["i0"]
    assert held.withdraw("i0") and not held.withdraw("i0")
    first = held.first("base", set(), 31.0)
    assert first is not None and first.id == "b0"
    held.add(request("i1"), 31.0)
    assert taken(held, now=31.0) == ["b0", "i1", "b1"], "of its tenant one at a time"


def test_floods_of_a_few_tenants_leave_room_for_others() -> None:
    held = Held(Holding(1.0, requests=8, bytes=1000))
    for tenant in "abcd":
        for i in range(2):
            held.add(request(f"{tenant}{i}", tenant), 0.0)
        with pytest.raises(NoEngine, match="`base`"):
            held.add(request(f"{tenant}2", tenant), 0.0)
    held.add(request("e0", "e"), 0.0)
    with pytest.raises(NoEngine):
        held.add(request("e1", "e"), 0.0)
    for tenant in "fgh":
        held.add(request(f"{tenant}0", tenant), 0.0)
    assert len(held) == 12


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 60), st.booleans(), st.integers(0, 2)),
        max_size=60,
    )
)
def test_bounds_hold_and_every_request_is_taken(
    events: list[tuple[int, int, bool, int]],
) -> None:
    held = Held(Holding(1.0, requests=12, bytes=120, batch_patience_s=5.0))
    waiting: dict[str, tuple[str, int]] = {}
    for number, (tenant, size, leaves, kind) in enumerate(events):
        if leaves and waiting:
            id = next(iter(waiting))
            del waiting[id]
            assert held.withdraw(id)
        id, lane = f"r{number}", "batch" if number % 3 else "interactive"
        with suppress(NoEngine):
            held.add(request(id, str(tenant), str(kind), size=size, lane=lane), float(number))
            waiting[id] = (str(tenant), size)
        assert len(held) == len(waiting) <= 24
        assert sum(size for _, size in waiting.values()) <= 240
        assert max(Counter(tenant for tenant, _ in waiting.values()).values(), default=0) <= 3
    assert held.by_base_model == ({"base": len(waiting)} if waiting else {})
    assert set(taken(held, now=float(len(events)))) == set(waiting)
    assert held.by_base_model == {} and not any(held.waits(str(kind)) for kind in range(3))
