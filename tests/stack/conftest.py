"""One whole Lorikeet on the synthetic engine for all tests of this folder: two gateways, and thus a
Redis, behind an ingress. Its answers come at the pace of a real engine, so that processes can be
killed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.document import conforming
from tests.stack.furnished import SETTINGS, furnished
from tests.stack.ingress import ingress
from tests.stack.running import Stack, free_ports, signed_in, up

PACE = 40
"""Tokens per second of each stream."""


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    port = free_ports(1)
    here = f"http://127.0.0.1:{port}"
    settings = SETTINGS | {
        "LORIKEET_ENGINE_OPTIONS": f"--engine synthetic --tokens-per-second {PACE}",
        "LORIKEET_GATEWAYS": "2",
        "LORIKEET_API_URL": here,
        "LORIKEET_CONSOLE_URL": here,
        "LORIKEET_METRICS_TENANTS": "3",
        # On a busy machine a killed engine takes long to start again.
        "LORIKEET_QUEUE_WITHOUT_ENGINE_S": "300",
    }
    with up(furnished(tmp_path_factory.mktemp("stack") / "var"), **settings) as running:
        running.hooks = {"response": [conforming.seen]}
        with ingress(port, running.url, running.own_console_url):
            yield running


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[httpx.Client]:
    """The operator, signed in to the console."""
    with signed_in(stack) as client:
        yield client
