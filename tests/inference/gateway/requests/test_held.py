"""The order and the bounds of held requests, without a gateway."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import NoEngine
from inference.gateway.requests.held import HeldRequest, HeldRequests, Holding

pytestmark = pytest.mark.pure


def request(id: str, tenant: str = "acme", kind: str = "plain", **fields: object) -> HeldRequest:
    given: dict[str, object] = {"base_model": "base", "size": 1} | fields
    return HeldRequest(id, tenant, kind=kind, **given)  # type: ignore[arg-type]


def test_tenants_take_turns_in_a_lane_and_batch_comes_last() -> None:
    held = HeldRequests(Holding(1.0))
    held.add(request("b0", "globex", lane="batch"))
    for id in ("a0", "a1", "a2"):
        held.add(request(id))
    held.add(request("g0", "globex"))
    held.add(request("b1", lane="batch"))
    assert held.in_order() == ["a0", "g0", "a1", "a2", "b0", "b1"]
    for id in ("a0", "a1", "a2"):
        assert held.remove(id) and not held.remove(id)
    held.add(request("a3"))
    assert held.in_order() == ["g0", "a3", "b0", "b1"], "acme came last"


def test_kinds_and_base_models_are_counted() -> None:
    held = HeldRequests(Holding(1.0))
    held.add(request("r1", kind="high"))
    held.add(request("r2", kind="high", base_model="other"))
    assert held.has_kind("high") and not held.has_kind("plain")
    assert held.by_base_model == {"base": 1, "other": 1}
    held.set_kind("r1", "plain")
    held.remove("r2")
    assert held["r1"].kind == "plain" and "r2" not in held
    assert held.has_kind("plain") and not held.has_kind("high")
    assert held.by_base_model == {"base": 1}


def test_floods_of_a_few_tenants_leave_room_for_others() -> None:
    held = HeldRequests(Holding(1.0, requests=8, bytes=1000))
    for tenant in "abcd":
        for i in range(2):
            held.add(request(f"{tenant}{i}", tenant))
        with pytest.raises(NoEngine, match="`base`"):
            held.add(request(f"{tenant}2", tenant))
    held.add(request("e0", "e"))
    with pytest.raises(NoEngine):
        held.add(request("e1", "e"))
    for tenant in "fgh":
        held.add(request(f"{tenant}0", tenant))
    assert len(held) == 12


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 60), st.booleans(), st.integers(0, 2)),
        max_size=60,
    )
)
def test_bounds_hold_and_every_request_is_there_until_it_leaves(
    events: list[tuple[int, int, bool, int]],
) -> None:
    held = HeldRequests(Holding(1.0, requests=12, bytes=120))
    waiting: dict[str, tuple[str, int]] = {}
    for number, (tenant, size, leaves, kind) in enumerate(events):
        if leaves and waiting:
            id = next(iter(waiting))
            del waiting[id]
            assert held.remove(id)
        id, lane = f"r{number}", "batch" if number % 3 else "interactive"
        with suppress(NoEngine):
            held.add(request(id, str(tenant), str(kind), size=size, lane=lane))
            waiting[id] = (str(tenant), size)
        assert len(held) == len(waiting) <= 24
        assert sum(size for _, size in waiting.values()) <= 240
        assert max(Counter(tenant for tenant, _ in waiting.values()).values(), default=0) <= 3
        assert sorted(held.in_order()) == sorted(waiting)
    assert held.by_base_model == ({"base": len(waiting)} if waiting else {})
    for id in waiting:
        held.remove(id)
    assert held.by_base_model == {} and not any(held.has_kind(str(kind)) for kind in range(3))
