"""How vLLM's tests are unpacked, with the names of our models."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tests.labs.endpoint.suite import Served, renamed, unpack

SERVED = Served("ours", Path(), {"support": Path()}, (), context=4096)


def test_names_and_context_are_replaced() -> None:
    text = 'MODEL = "Qwen/Qwen3-0.6B"\nLORA = "zephyr-lora"\nLENGTH = 8192\nOTHER = "a/b"\n'
    assert renamed(text, SERVED) == (
        'MODEL = "ours"\nLORA = "support"\nLENGTH = 4096\nOTHER = "a/b"\n'
    )


def test_only_what_runs_is_unpacked(tmp_path: Path) -> None:
    source = tmp_path / "vllm.tar.gz"
    names = ["tests/entrypoints/a.py", "tests/utils.py", "tests/entrypoints/b.json", "vllm/c.py"]
    with tarfile.open(source, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"vllm-1/{name}")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"\n"))
    unpack(source, tmp_path, SERVED)
    found = [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()]
    assert sorted(found) == ["tests/entrypoints/a.py", "vllm.tar.gz"]
    assert (tmp_path / "ours").is_symlink() and (tmp_path / "support").is_symlink()
