"""A few pictures of `make screenshots`."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.scenery import Scenery
from tests.labs.screenshots.camera import LOOKS, Camera, sheet
from tests.labs.screenshots.shots import shots
from tests.stack.running import Stack

pytestmark = pytest.mark.stack


def test_pages_are_photographed_in_every_look(
    stack: Stack, chromium: Browser, scenery: Scenery, tmp_path: Path
) -> None:
    wanted = [shot for shot in shots(scenery) if shot.name in ("palette", "upload")]
    camera = Camera(chromium, stack, scenery, tmp_path)
    for shot in wanted:
        camera.take(shot)
    sheet(tmp_path, [shot.name for shot in wanted])
    assert camera.failed == []
    pictures = list(tmp_path.glob("*.png"))
    assert len(pictures) == 2 * len(LOOKS)
    assert all(picture.stat().st_size > 5_000 for picture in pictures)
