"""Installed packages match the lock files by hash, and the bill of materials lists all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.environment import ROOT
from tools.install import pip, requirements

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PINNED = re.compile(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_each_requirement_is_pinned_with_hashes_and_nothing_else_is_there(lock: Path) -> None:
    text = lock.read_text()
    assert PINNED.sub("", text) == ""
    assert len(PINNED.findall(text)) > 0


def test_no_package_is_looked_for_on_an_index_that_is_not_its_own() -> None:
    texts = [(ROOT / name).read_text() for name in ("Makefile", "tools/install.py")]
    assert not any("unsafe" in text or "--extra-index-url" in text for text in texts)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (index,) = project["tool"]["uv"]["index"]
    assert index["explicit"]
    assert list(project["tool"]["uv"]["sources"]) == ["torch"]


def test_pip_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """pip is called as in `tools/install.py`."""
    wheel = tmp_path / "none-1-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"none @ file://{wheel} --hash=sha256:{'0' * 64}\n")
    command = [*map(str, pip(Path(sys.executable))), "--no-index", "--target", str(tmp_path / "x")]
    done = subprocess.run([*command, "-r", str(lock)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "DO NOT MATCH" in done.stderr


def test_a_lock_is_read_with_its_hashes() -> None:
    pinned = [
        "a==1 \\\n    --hash=sha256:0 \\\n    --hash=sha256:1",
        "b==2+cpu \\\n    --hash=sha256:2",
    ]
    assert requirements("\n".join(pinned) + "\n") == pinned


def test_the_bill_of_materials_lists_what_is_locked_and_what_browsers_get(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "sbom.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    for kind in ("cpu", "gpu"):
        bill = json.loads((tmp_path / f"lorikeet-{kind}.cdx.json").read_text())
        assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
        listed = {f"{one['name']}=={one['version']}": one for one in bill["components"]}
        for requirement in requirements((ROOT / "requirements" / f"{kind}.txt").read_text()):
            hashes = re.findall("sha256:([0-9a-f]+)", requirement)
            found = listed[requirement.split()[0]]
            assert {one["content"] for one in found["hashes"]} == set(hashes)
        assert any(one["purl"].startswith("pkg:npm/htmx.org@") for one in bill["components"])
