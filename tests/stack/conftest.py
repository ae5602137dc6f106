"""One whole Lorikeet on real vLLM for all tests of this folder: two gateways, and thus a Redis."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.browser.conftest import chromium, customer, office, owner, street  # noqa: F401
from tests.document import conforming
from tests.stack.furnished import SETTINGS, furnished
from tests.stack.running import Stack, signed_in, up


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    var = furnished(tmp_path_factory.mktemp("stack") / "var")
    # On a busy machine a killed engine takes long to start again.
    settings = SETTINGS | {"QUEUE_WITHOUT_ENGINE_S": "300", "METRICS_TENANTS": "3"}
    with up(var, GATEWAYS="2", **settings) as running:
        running.hooks = {"response": [conforming.seen]}
        yield running


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[httpx.Client]:
    """The operator, signed in to the console."""
    with signed_in(stack) as client:
        yield client
