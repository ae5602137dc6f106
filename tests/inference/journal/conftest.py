"""Fixtures shared by all tests of the journal."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inference.journals import RAM


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a journal; in memory, because each example of a property test may start anew."""
    with tempfile.TemporaryDirectory(dir=RAM) as root:
        yield Path(root) / "journal"
