"""The rules of `tenants.directory.outage`, with given clock values."""

from __future__ import annotations

import pytest

from tenants.directory.outage import ASK_AGAIN_S, Outage

pytestmark = pytest.mark.pure


def test_one_at_a_time_asks_while_it_lasts() -> None:
    outage = Outage()
    assert not outage.spares(0.0) and not outage.spares(0.0)
    outage.found(10.0)
    assert outage.spares(10.0 + ASK_AGAIN_S - 0.1)
    assert not outage.spares(10.0 + ASK_AGAIN_S)
    assert outage.spares(10.0 + ASK_AGAIN_S)
    assert not outage.spares(10.0 + 2 * ASK_AGAIN_S)
    outage.over()
    assert not outage.spares(10.0 + 2 * ASK_AGAIN_S)
