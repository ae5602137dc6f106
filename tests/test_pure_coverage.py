"""What a run under coverage measures."""

from __future__ import annotations

import os

import pytest

from tests.pure_coverage import OF_PROCESSES


@pytest.mark.pure
def test_the_processes_of_a_pure_test_are_not_measured() -> None:
    assert OF_PROCESSES not in os.environ
