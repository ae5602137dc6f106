"""Measures coverage only in tests marked `pure`, and while the modules of coverage's `include` are
imported (a pytest plugin for a run under `coverage run`). The rest would take several times longer.

Processes that tests start are not measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import PurePath
from types import ModuleType

import pytest
from coverage import Coverage

OF_PROCESSES = "COVERAGE_PROCESS_CONFIG"
"""A variable that coverage sets at each start, and with which a process measures itself."""
_coverage = Coverage.current()


@contextmanager
def _measuring(coverage: Coverage) -> Iterator[None]:
    if Coverage.current() is coverage:  # a measured module imports another one
        yield
        return
    inherited = OF_PROCESSES in os.environ
    coverage.start()
    if not inherited:
        os.environ.pop(OF_PROCESSES, None)
    try:
        yield
    finally:
        coverage.stop()


class MeasuredLoader(SourceFileLoader):
    """Loads a module with coverage."""

    def exec_module(self, module: ModuleType) -> None:
        assert _coverage is not None
        with _measuring(_coverage):
            super().exec_module(module)


class MeasuredFinder:
    """Finds the modules of these patterns for `MeasuredLoader`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._names = {PurePath(pattern.removeprefix("platform/")).parts[0] for pattern in patterns}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in self._names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and any(map(PurePath(spec.origin or "").match, self._patterns)):
            spec.loader = MeasuredLoader(name, str(spec.origin))
        return spec


if _coverage is not None:
    _coverage.stop()
    sys.meta_path.insert(0, MeasuredFinder(_coverage.get_option("run:include")))  # type: ignore[arg-type]


def pytest_sessionstart(session: pytest.Session) -> None:
    if not session.config.getoption("numprocesses", None):  # the processes of `-n` inherit it
        os.environ.pop(OF_PROCESSES, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _coverage is None or item.get_closest_marker("pure") is None:
        return (yield)
    with _measuring(_coverage):
        return (yield)
