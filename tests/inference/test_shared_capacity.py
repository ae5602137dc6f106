"""A resource shared by tenants: who may take how much of it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.shared_capacity import TENANT_SHARE, SharedCapacity

pytestmark = pytest.mark.pure

MOST = 24
QUARTER = MOST // TENANT_SHARE


def test_a_tenant_may_take_a_quarter() -> None:
    shares = SharedCapacity[str](MOST)
    assert not shares.take("acme", QUARTER + 1) and shares.total == 0
    assert shares.take("acme", QUARTER) and not shares.take("acme", 1)
    assert shares.take("globex", QUARTER)
    shares.give_back("acme", 1)
    assert shares.take("acme", 1) and shares.total == 2 * QUARTER


def test_once_all_is_taken_only_tenants_below_an_equal_share_may_take() -> None:
    shares = SharedCapacity[int](MOST)
    assert all(shares.take(tenant, QUARTER) for tenant in range(TENANT_SHARE))
    equal = MOST // (TENANT_SHARE + 1)
    assert not shares.take(9, equal + 1) and shares.take(9, equal)
    shares.give_back(0, QUARTER - 1)
    assert shares.take(0, 1), "it has less than the others now"


def test_added_amounts_need_no_room_and_count() -> None:
    shares = SharedCapacity[str](MOST)
    shares.add("acme", 3 * MOST)
    assert shares.total == 3 * MOST and not shares.take("globex", 1)
    shares.give_back("acme", 3 * MOST)
    assert shares.take("globex", 1)


def test_a_block_holds_what_it_took_until_its_end() -> None:
    shares = SharedCapacity[str](MOST)
    with pytest.raises(ZeroDivisionError), shares.holding("acme", QUARTER) as taken:
        assert taken and shares.total == QUARTER
        with shares.holding("acme", 1) as taken:
            assert not taken
        assert shares.total == QUARTER, "what was not taken is not given back"
        _ = 1 // 0
    assert shares.total == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, MOST), st.booleans())))
def test_bounds_hold_and_nothing_is_lost(events: list[tuple[int, int, bool]]) -> None:
    shares, held = SharedCapacity[int](MOST), Counter[int]()
    for tenant, amount, gives in events:
        if gives:
            amount = min(amount, held[tenant])
            shares.give_back(tenant, amount)
            held[tenant] -= amount
        else:
            had_room = shares.has_room(tenant, amount)
            assert shares.take(tenant, amount) == had_room
            held[tenant] += amount if had_room else 0
        assert shares.total == held.total() <= 2 * MOST
        assert max(held.values()) <= QUARTER
