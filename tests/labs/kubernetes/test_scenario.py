"""The shipped manifests on a real control plane, with real gateways and engines as their pods.

Needs root, `etcd`, `kubectl`, and the control plane's programs in KUBERNETES_BINARIES, which
`build.sh` builds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BINARIES = Path(os.environ.get("KUBERNETES_BINARIES") or "/nonexistent")
ALONE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
LIMIT_S = 1200


def missing() -> str:
    """Why it can't run here; empty if it can."""
    if not (BINARIES / "kube-apiserver").exists():
        return "KUBERNETES_BINARIES names no folder with a control plane"
    for program in ("kubectl", "unshare", "nsenter", "setpriv", "ip", "openssl"):
        if shutil.which(program) is None:
            return f"{program} is not here"
    if not (BINARIES / "etcd").exists() and shutil.which("etcd") is None:
        return "etcd is not here"
    if ROOT.is_relative_to("/tmp"):
        return "this checkout is in /tmp, of which each pod has one of its own"
    if not ROOT.stat().st_mode & 0o001 or not (ROOT / "manage.py").stat().st_mode & 0o004:
        return "other accounts, as those of pods, can't read this checkout"
    done = subprocess.run([*ALONE, "true"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no namespaces can be made: {done.stderr}"


@pytest.mark.kubernetes
def test_engines_come_and_go_with_the_load_and_nothing_is_lost(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    command = [*ALONE, sys.executable, "-m", "tests.labs.kubernetes", str(BINARIES), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["steps"]) == 11
    assert {step["name"]: step["failures"] for step in result["steps"] if step["failures"]} == {}
    facts = result["facts"]
    assert facts["cut off at the end of their grace"] == []
    assert facts["ended by a liveness probe"] == []
    assert facts["answered"] == facts["told to clients"]
    assert facts["ends"] == {}
