"""Fixtures shared by all tests of measuring."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def known_engine(first_of_equals: None) -> None:
    """Ties between engines are won by the first, because these tests play the engines and must know
    which one is chosen."""
