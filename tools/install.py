#!/usr/bin/env python3
"""Make the virtual environment from the locked requirements. Standard library only.

    python3 tools/install.py            # what Lorikeet runs on
    python3 tools/install.py --dev      # and what its tests and linters need

Does nothing when the environment already holds exactly this lock. With an NVIDIA GPU (or
LORIKEET_DEVICE=gpu) the CUDA build of vLLM is installed, otherwise the CPU build.

torch's CPU build is not on PyPI. pip's own configuration (find-links, an index) is asked first:
where it knows the wheel, nothing else is contacted; where it doesn't, it says so at once and
PyTorch's CPU index (or LORIKEET_TORCH_INDEX) is used, for this one package alone, so that no other
package is ever looked for there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH_INDEX = os.environ.get("LORIKEET_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
UV = "uv==0.13.8"
"""Installs the lock ten times faster than pip."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dev", action="store_true", help="also install test and lint tools")
    options.add_argument("--venv", type=Path, default=ROOT / ".venv")
    arguments = options.parse_args()
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"lorikeet: Python 3.11 is needed, this is {sys.version.split()[0]}")
    device = os.environ.get("LORIKEET_DEVICE") or ("gpu" if has_gpu() else "cpu")
    locks = [ROOT / "requirements" / f"{device}.txt"]
    locks += [ROOT / "requirements" / "dev.txt"] if arguments.dev else []
    install(arguments.venv, locks)


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers."""
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True).returncode == 0


def install(folder: Path, locks: list[Path]) -> None:
    """Bring the environment in `folder` to these locks."""
    stamps = {lock.name: hashlib.sha256(lock.read_bytes()).hexdigest() for lock in locks}
    if all(read_stamp(folder, name) == stamp for name, stamp in stamps.items()):
        return
    began = time.monotonic()
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"making the virtual environment {folder.name}")
        venv.create(folder, with_pip=True)
    if not (folder / "bin" / "uv").exists():
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV])
    for lock in locks:
        if read_stamp(folder, lock.name) != stamps[lock.name]:
            say(f"installing {lock.relative_to(ROOT)}")
            install_lock(folder, python, lock)
            (folder / f".{lock.name}.sha256").write_text(stamps[lock.name])
    say(f"installed in {time.monotonic() - began:.0f} s")


def install_lock(folder: Path, python: Path, lock: Path) -> None:
    """Install one lock; `--no-deps`, so that nothing outside it ever comes along."""
    lines = [line.strip() for line in lock.read_text().splitlines()]
    for line in lines:
        if line.startswith("torch==") and "+cpu" in line:
            install_torch(python, line)
    rest = folder / f".{lock.name}.rest"
    rest.write_text("\n".join(line for line in lines if "+cpu" not in line))
    uv = [folder / "bin" / "uv", "pip", "install", "--quiet", "--python", python, "--no-deps"]
    run([*uv, *index_options(python), "--requirement", rest])


def install_torch(python: Path, requirement: str) -> None:
    """torch's CPU build, from pip's own sources or from PyTorch's index."""
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    found = subprocess.run([*map(str, pip), requirement], capture_output=True, text=True)
    if found.returncode:
        say(f"pip's own sources lack {requirement}: trying {TORCH_INDEX}")
        run([*pip, "--index-url", TORCH_INDEX, requirement])


def index_options(python: Path) -> list[str]:
    """pip's configured index for uv, which doesn't read pip's configuration."""
    options: list[str] = []
    for key, option in (("index-url", "--default-index"), ("find-links", "--find-links")):
        asked = [str(python), "-m", "pip", "config", "get", f"global.{key}"]
        value = subprocess.run(asked, capture_output=True, text=True).stdout.split()
        for one in value:
            options += [option, one]
    return options


def read_stamp(folder: Path, name: str) -> str:
    stamp = folder / f".{name}.sha256"
    return stamp.read_text() if stamp.exists() else ""


def run(command: list[object]) -> None:
    done = subprocess.run([str(part) for part in command])
    if done.returncode:
        sys.exit(f"lorikeet: `{' '.join(map(str, command[:6]))} ...` failed: see above")


def say(message: str) -> None:
    print(f"lorikeet: {message}", flush=True)


if __name__ == "__main__":
    main()
