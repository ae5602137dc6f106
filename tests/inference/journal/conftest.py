"""What all tests of the journal share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inference.journals import RAM


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of a journal; in memory, since each step of a test may start anew."""
    with tempfile.TemporaryDirectory(dir=RAM) as root:
        yield Path(root) / "journal"
