"""A tenant with everything in it, for the tests that look at pages."""

from __future__ import annotations

import pytest

from tests.browser.scenery import Scenery, make
from tests.stack.running import Stack


@pytest.fixture(scope="package")
def scenery(stack: Stack) -> Scenery:
    return make(stack)
