"""Measures coverage only while modules are imported and during tests marked `pure` (a pytest
plugin for a run under `coverage run`). The rest would take several times longer.

Processes that tests start are not measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from coverage import Coverage

_coverage = Coverage.current()


def pytest_sessionstart(session: pytest.Session) -> None:
    if not session.config.getoption("numprocesses", None):  # the processes of `-n` inherit it
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


def pytest_collection_finish() -> None:
    if _coverage is not None:
        _coverage.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _coverage is None or item.get_closest_marker("pure") is None:
        return (yield)
    _coverage.start()
    try:
        return (yield)
    finally:
        _coverage.stop()
