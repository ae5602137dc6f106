"""One whole Lorikeet on real vLLM for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import chromium, customer, office, owner, street  # noqa: F401
from tests.document import conforming
from tests.stack.furnished import SETTINGS, furnished
from tests.stack.running import Stack, up


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = SETTINGS | {"LORIKEET_TRAINERS": "1"}
    with up(furnished(tmp_path_factory.mktemp("vllm") / "var"), **settings) as running:
        running.hooks = {"response": [conforming.seen]}
        yield running
