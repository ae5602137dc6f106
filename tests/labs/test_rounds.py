"""One short round of each laboratory that needs no stack of the tests: the real command must work.

Attacks, mutations, screenshots and fuzzed requests have theirs where their stack or engine runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.environment import ROOT

LIMIT_S = 280
FUZZED = ["tests/labs/fuzz_api/fuzz_v1.py", "tests/labs/fuzz_api/fuzz_management.py"]


def run(*command: str, **settings: str) -> str:
    """What the command prints."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_chaos() -> None:
    said = run("tests.labs.chaos", "--seconds", "8", "--seed", "1", "--without-trainer")
    assert "seed 1" in said


def test_benchmarks() -> None:
    assert "CPU of a decision" in run("tests.labs.bench", "--quick", "deciding")


def test_fuzzed_requests_of_the_api() -> None:
    chosen = ["-k", "POST-prices or chat/completions"]
    said = run("pytest", "-q", *chosen, *FUZZED, FUZZ_QUESTIONS="2", FUZZ_EXAMPLES="1")
    assert " passed" in said


def test_generated_clients(tmp_path: Path) -> None:
    recorded = "tests/tenants/api/test_prices.py"
    run("pytest", "-q", recorded, RECORD_ANSWERS=str(tmp_path))
    assert "Python client read" in run("tests.labs.clients", str(tmp_path))
