"""Fixtures and settings that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Nothing is timed: on a busy machine an example may take as long as it likes.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

TESTS = Path(__file__).parent
TOGETHER = ("browser", "engine", "stack")
"""Folders whose tests share an engine or a whole stack."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2 --dist loadgroup` (`make test`) each file stays in one process, and so does each
    folder of TOGETHER."""
    for item in items:
        path = item.path.relative_to(TESTS)
        group = path.parts[0] if path.parts[0] in TOGETHER else str(path)
        item.add_marker(pytest.mark.xdist_group(group))
