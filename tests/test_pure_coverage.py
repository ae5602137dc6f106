"""What a run under coverage measures."""

from __future__ import annotations

import os

import pytest

from tests.pure_coverage import OF_PROCESSES, MeasuredFinder, MeasuredLoader


@pytest.mark.pure
def test_the_processes_of_a_pure_test_are_not_measured() -> None:
    assert OF_PROCESSES not in os.environ


@pytest.mark.parametrize(
    ("name", "measured"),
    [("inference.pools", True), ("inference.errors", False), ("inference.nothing", False)],
)
def test_only_modules_that_count_are_measured(name: str, measured: bool) -> None:
    import inference

    spec = MeasuredFinder(["inference/pools.py"]).find_spec(name, inference.__path__)
    assert isinstance(spec and spec.loader, MeasuredLoader) == measured


def test_modules_of_others_are_not_looked_for() -> None:
    assert MeasuredFinder(["inference/pools.py"]).find_spec("json", None) is None
