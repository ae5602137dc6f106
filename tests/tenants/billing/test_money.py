"""Amounts of money are shown with all of their digits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.interfaces.directory import PICO
from tenants.billing.money import amount

pytestmark = pytest.mark.pure


@given(st.integers(min_value=0, max_value=10**38))
def test_an_amount_is_exact(cost: int) -> None:
    assert int(amount(cost).replace(".", "")) == cost
    whole, _, parts = amount(cost).partition(".")
    assert len(parts) == 12 and int(whole) == cost // PICO


def test_no_cost_is_below_zero() -> None:
    with pytest.raises(ValueError):
        amount(-1)
