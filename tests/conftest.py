"""Fixtures and settings that every test may use."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from django.apps import apps
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.fleet.fake import FakeGateways

# Nothing is timed: on a busy machine an example may take as long as it likes.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch) -> FakeGateways:
    """What this process asks of the gateways is answered by the test."""
    fake = FakeGateways()
    monkeypatch.setattr(apps.get_app_config("tenants"), "gateways", fake, raising=False)
    return fake


TOGETHER = ("browser", "engine", "stack")
"""Folders whose tests share an engine or a whole stack."""


class ByCost(LoadScopeScheduling):
    """With `-n 2` each file stays in one process, and so does each folder of TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = PurePosixPath(path).parts[1]
        return folder if folder in TOGETHER else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCost:
    return ByCost(config, log)
