"""One whole Lorikeet on real vLLM for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.running import Stack, up


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with up(tmp_path_factory.mktemp("stack") / "var") as running:
        yield running
