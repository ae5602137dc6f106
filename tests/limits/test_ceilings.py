"""Which of the limits that were set are in force, without a database."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.interfaces.directory import Limits
from tenants.limits.ceilings import Sets, beyond, ceiling, in_force, least, limits
from tenants.limits.kinds import KINDS

pytestmark = pytest.mark.pure

FIGURES = st.dictionaries(st.sampled_from(sorted(KINDS)), st.none() | st.integers(0, 10**12))
SETS = st.dictionaries(st.sampled_from(["operator", "tenant", "default"]), FIGURES)


@given(SETS)
def test_nothing_in_force_is_above_the_ceiling_or_the_tenants_own(sets: Sets) -> None:
    found, highest, own = in_force(sets), ceiling(sets), sets.get("tenant", {})
    for field in KINDS:
        here = [limit for limit in (highest[field], own.get(field)) if limit is not None]
        assert found[field] == (min(here) if here else None)


@given(SETS)
def test_the_default_holds_only_where_the_operator_set_nothing(sets: Sets) -> None:
    operator, default = sets.get("operator", {}), sets.get("default", {})
    for field, limit in ceiling(sets).items():
        expected = operator.get(field)
        assert limit == (default.get(field) if expected is None else expected)


@given(SETS, SETS)
def test_the_least_is_below_both(one: Sets, other: Sets) -> None:
    found = least(in_force(one), in_force(other))
    assert found == least(in_force(other), in_force(one)) == least(found, in_force(one))


@pytest.mark.parametrize("sets", [None, {}, {"tenant": {}}, {"operator": {"tokens_per_day": None}}])
def test_a_scope_without_limits_is_no_scope(sets: Sets | None) -> None:
    assert limits("t1", "tenant `acme`", sets) == ()


def test_a_limit_of_zero_is_a_limit() -> None:
    sets = {"operator": {"concurrent_streams": 0}, "default": {"concurrent_streams": 5}}
    assert limits("t1", "tenant `acme`", sets) == (
        Limits("t1", "tenant `acme`", {"concurrent_streams": 0}),
    )


def test_other_columns_of_a_row_are_left_aside() -> None:
    row: Any = {"id": 3, "author": "tenant", "updated_at": "2026-01-01", "cost_per_day": 9}
    assert limits("k7", "key `ci`", {"tenant": row}) == (
        Limits("k7", "key `ci`", {"cost_per_day": 9}),
    )


def test_beyond_tells_only_what_is_above_the_ceiling() -> None:
    ceiling = {"tokens_per_day": 10, "requests_per_minute": 5, "cost_per_day": None}
    own = {"tokens_per_day": 11, "requests_per_minute": 5, "cost_per_day": 9}
    unset = {"tokens_per_month": 7, "concurrent_streams": None}
    assert beyond(own | unset, ceiling) == {"tokens_per_day": 10}
