"""The memory of response sockets is bounded, and the tenant that uses most of it loses entries
first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.last_responses import LastResponses, ResponseItems

pytestmark = pytest.mark.pure


def response(size: int, id: str = "resp_1") -> ResponseItems:
    return ResponseItems(id, b"x" * size)


def test_the_last_one_is_kept_until_it_is_forgotten() -> None:
    kept = LastResponses(400)
    assert kept.find(1, "a") is None
    kept.keep(1, "a", response(50))
    kept.keep(1, "a", response(60, "resp_2"))
    assert kept.find(1, "a") == response(60, "resp_2") and kept.bytes == 60
    assert kept.find(2, "a") is None and kept.find(1, "b") is None
    kept.forget(1, "a")
    kept.forget(1, "a")
    assert kept.find(1, "a") is None and kept.bytes == 0


def test_what_is_too_large_alone_is_not_kept_nor_what_it_replaces() -> None:
    kept = LastResponses(400)
    kept.keep(1, "a", response(50))
    kept.keep(1, "a", response(101))
    assert kept.find(1, "a") is None and kept.bytes == 0


def test_a_tenant_with_too_much_loses_its_own_oldest() -> None:
    kept = LastResponses(400)
    kept.keep(2, "z", response(90))
    for name in "abc":
        kept.keep(1, name, response(40))
    assert [kept.find(1, name) is not None for name in "abc"] == [False, True, True]
    assert kept.find(2, "z") is not None


def test_the_tenant_with_the_most_makes_room_when_full() -> None:
    kept = LastResponses(400)
    for tenant in (1, 2, 3, 4):
        kept.keep(tenant, "a", response(40 + tenant))
        kept.keep(tenant, "b", response(50))
    assert kept.bytes == 370
    kept.keep(5, "a", response(60))
    assert kept.find(4, "a") is None and kept.find(4, "b") is not None
    assert all(kept.find(tenant, "a") for tenant in (1, 2, 3, 5))


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 120)), max_size=60))
def test_it_never_keeps_more(steps: list[tuple[int, int, int]]) -> None:
    kept = LastResponses(400)
    for tenant, socket, size in steps:
        if size < 10:
            kept.forget(tenant, socket)
        else:
            kept.keep(tenant, socket, response(size))
        found = {one: [kept.find(one, socket) for socket in range(1, 5)] for one in range(1, 7)}
        sizes = {one: sum(len(s.items) for s in all if s) for one, all in found.items()}
        assert kept.bytes == sum(sizes.values()) <= 400
        assert max(sizes.values()) <= 100
