"""One whole Lorikeet on the synthetic engine for all tests of this folder, with two gateways. Its
answers come at the pace of a real engine, so that processes can be killed meanwhile.

`test_rollouts` must stay the first: its guard compares with the requests of the minutes before, and
the other tests send many at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.furnished import SETTINGS, furnished
from tests.stack.running import Stack, up

ENGINE = "--engine synthetic --tokens-per-second 40"


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    var = furnished(tmp_path_factory.mktemp("synthetic") / "var")
    with up(var, ENGINE_OPTIONS=ENGINE, GATEWAYS="2", **SETTINGS) as running:
        yield running
