"""The libraries for the browser are those that VENDOR.json names."""

from __future__ import annotations

import subprocess
import sys

from tests.environment import ROOT


def test_the_vendored_files_are_as_listed() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "vendor.py"), "--check"], capture_output=True
    )
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_nothing_refers_to_a_source_map_that_is_not_there() -> None:
    for file in (ROOT / "frontend" / "static" / "vendor").rglob("*.js"):
        assert b"sourceMappingURL" not in file.read_bytes(), file
