"""A second chance for tests that failed in a parallel run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import ROOT

CONFIGURATION = "[pytest]\naddopts = -p tests.rerun -p no:django -p no:schemathesis"
TESTS = """
import os, pytest

IN_PARALLEL = "PYTEST_XDIST_WORKER" in os.environ

def test_by_chance():
    assert not IN_PARALLEL, "no time"

@pytest.fixture
def busy():
    assert not IN_PARALLEL, "in use"

def test_with_a_fixture(busy):
    pass

def test_right():
    pass
"""


def run(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(CONFIGURATION)
    (folder / "test_them.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-n", "1"]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = ours | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_tests_that_pass_alone_are_listed_and_do_not_fail_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS)
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert "passed only alone: test_them.py::test_by_chance (call)" in done.stdout
    assert "passed only alone: test_them.py::test_with_a_fixture (setup)" in done.stdout
    assert "AssertionError: no time" in done.stdout
    assert "1 passed, 2 passed only alone" in done.stdout.splitlines()[-1]


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, f"{TESTS}\ndef test_wrong():\n    assert 1 == 2\n")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "1 failed, 1 passed, 2 passed only alone" in done.stdout.splitlines()[-1]
