"""The ids of requests."""

from __future__ import annotations

import itertools

import pytest

from inference.ids import new_id

pytestmark = pytest.mark.pure


def test_ids_sort_by_time_and_differ() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(a[:12] <= b[:12] for a, b in itertools.pairwise(ids))
