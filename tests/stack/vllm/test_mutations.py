"""A few mutated adapters through a whole Lorikeet on real vLLM; `make mutate` uploads hundreds."""

from __future__ import annotations

import pytest

from tests.labs.mutations.run import NEIGHBOURS, run
from tests.stack.running import Stack

pytestmark = pytest.mark.stack


def test_neighbours_of_mutated_adapters_notice_nothing(stack: Stack) -> None:
    tally = run(stack, count=8, seed=11, pause_s=0.5)
    assert tally.wrong == []
    assert tally.by_end()["ready"] > 0
    assert len(tally.by_end()) > 1
    assert len(tally.answers) == len(NEIGHBOURS)
