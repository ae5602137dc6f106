"""A tenant with data on every page, for the tests of the pages' appearance."""

from __future__ import annotations

import pytest

from tests.browser.scenery import Scenery, make
from tests.stack.running import Stack


@pytest.fixture(scope="package")
def scenery(stack: Stack) -> Scenery:
    return make(stack)
