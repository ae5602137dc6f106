"""What all tests of measuring share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def known_engine(first_of_equals: None) -> None:
    """The tests play the engines, so they have to know which of them is asked."""
