"""The comparison of what a client read with what it was sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.labs.clients.in_python import same

pytestmark = pytest.mark.pure
SENT = {"at": "2026-05-01T12:00:00.000000Z", "data": [{"n": 1, "ends": None}]}


@pytest.mark.parametrize("at", [SENT["at"], "2026-05-01T12:00:00+00:00"])
def test_a_time_may_be_written_in_another_way(at: str) -> None:
    assert same(SENT | {"at": at}, SENT)


@pytest.mark.parametrize(
    "changed",
    [
        {"at": "2026-05-01T12:00:00.000001Z"},
        {"at": "today"},
        {"at": None},
        {"data": [{"n": 2, "ends": None}]},
        {"data": [{"n": True, "ends": None}]},
        {"data": [{"n": 1}]},
        {"data": []},
        {"more": 1},
    ],
)
def test_anything_else_is_found(changed: dict[str, Any]) -> None:
    assert not same(SENT | changed, SENT)
