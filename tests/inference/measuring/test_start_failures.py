"""Engines that could not start."""

from __future__ import annotations

import pytest

from inference.gateway.measuring.start_failures import (
    KEPT_S,
    MAX_CAUSE,
    MAX_ID,
    MAX_KEPT,
    StartFailure,
    StartFailures,
)
from inference.interfaces.credentials import EngineIdentity

pytestmark = pytest.mark.pure

RACK = EngineIdentity(1, "rack")


def test_the_last_failure_of_an_engine_is_told_until_it_starts() -> None:
    failures = StartFailures(lambda: 7.0)
    for cause in ("no memory", "no weights"):
        failures.note("e1", RACK, cause)
    assert failures.recent() == [StartFailure("e1", "rack", "no weights", 7.0)]
    failures.started("e1")
    failures.started("e2")
    assert failures.recent() == []


def test_what_is_kept_is_bounded() -> None:
    now = 0.0
    failures = StartFailures(lambda: now)
    for number in range(MAX_KEPT + 3):
        failures.note(f"e{number}", RACK, "")
    assert [one.engine for one in failures.recent()][0::MAX_KEPT] == ["e3"]
    failures.note("x" * 1000, RACK, "y" * 10_000)
    last = failures.recent()[-1]
    assert (len(last.engine), len(last.cause)) == (MAX_ID, MAX_CAUSE)
    now = KEPT_S
    assert failures.recent() == []
