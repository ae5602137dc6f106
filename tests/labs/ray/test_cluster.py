"""`manage.py engines` and `manage.py trainer` on a real Ray cluster on this machine, with nodes
added and removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.labs.kubernetes.test_scenario import ALONE, LIMIT_S, ROOT


@pytest.mark.ray
def test_engines_and_nodes_come_and_go_with_the_load(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    done = subprocess.run([*ALONE, "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no namespaces can be made: {done.stderr}")
    command = [*ALONE, sys.executable, "-m", "tests.labs.ray.scenario", str(tmp_path)]
    path = f"{ROOT}:{ROOT / 'platform'}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    steps = {step["name"]: step for step in json.loads((tmp_path / "result.json").read_text())}
    assert {name: step["failures"] for name, step in steps.items() if step["failures"]} == {}
    assert steps["load rises to 12 requests at a time"]["nodes"] == 2
    assert steps["nothing is asked"]["nodes"] == 0
    assert "a fine-tuning job was trained by a task; an engine checks it" in steps
    assert steps["nothing is asked or trained"]["nodes"] == 0
