"""No process runs on a database with another release's schema."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import databases
from tests.gateway.test_planes import ROOT


@pytest.mark.parametrize("process", ["gateway", "console", "worker"])
def test_a_process_does_not_start_before_the_migrations(process: str) -> None:
    with databases.empty() as url:
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), process],
            env=os.environ | {"DATABASE_URL": url},
            cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode != 0
    assert "Run `manage.py migrate` first" in done.stderr
