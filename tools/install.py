#!/usr/bin/env python3
"""Make the virtual environment from the locked requirements. Standard library only.

    python3 tools/install.py            # Lorikeet's own requirements
    python3 tools/install.py --dev      # and those of its tests and linters
    python3 tools/install.py --venv FOLDER --lock FILE    # another program's, by its own lock

Does nothing when the environment already holds exactly this lock. With an NVIDIA GPU (or
LORIKEET_DEVICE=gpu) the CUDA build of vLLM is installed, otherwise the CPU build.

The locks are for Python 3.11. Another Python is used only to install uv, which finds or fetches it
(UV_PYTHON_INSTALL_MIRROR and UV_PYTHON_INSTALL_DIR say from where, and to which folder).

Every file is checked against the hashes of the lock, wherever it comes from.

torch's CPU build is not on PyPI. The sources in pip's own configuration (find-links, an index) are
tried first: if they have the wheel, nothing else is contacted; if not, they fail at once and
PyTorch's CPU index (or LORIKEET_TORCH_INDEX) is used, only for this package, so that no other
package is ever looked up there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH_INDEX = os.environ.get("LORIKEET_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
INSTALLER = ROOT / "requirements" / "install.txt"
"""uv, which installs a lock ten times faster than pip."""
LOCKED = "3.11"
"""The version of Python that the locks are for."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dev", action="store_true", help="also install test and lint tools")
    options.add_argument("--venv", type=Path, default=ROOT / ".venv")
    options.add_argument("--lock", type=Path, help="install this lock and no other")
    arguments = options.parse_args()
    if "{}.{}".format(*sys.version_info) != LOCKED:
        python = find_python(arguments.venv.with_name(".venv-python"))
        os.execv(python, [python, __file__, *sys.argv[1:]])
    if arguments.lock:
        install(arguments.venv, [arguments.lock.resolve()])
        return
    device = os.environ.get("LORIKEET_DEVICE") or ("gpu" if has_gpu() else "cpu")
    locks = [ROOT / "requirements" / f"{device}.txt"]
    locks += [ROOT / "requirements" / "dev.txt"] if arguments.dev else []
    install(arguments.venv, locks)


def has_gpu() -> bool:
    """Whether an NVIDIA driver responds."""
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True).returncode == 0


def find_python(folder: Path) -> str:
    """A Python that the locks are for: this system's, or else one that uv fetches. uv lies in an
    environment of its own in `folder`."""
    install_uv(folder)
    uv = folder / "bin" / "uv"
    find = [uv, "python", "find", "--system", LOCKED]
    found = subprocess.run([str(part) for part in find], capture_output=True, text=True)
    if found.returncode:
        say(f"this is Python {sys.version.split()[0]}: uv fetches Python {LOCKED}")
        run([uv, "python", "install", "--no-bin", LOCKED])
        found = subprocess.run([str(part) for part in find], capture_output=True, text=True)
    return found.stdout.strip()


def install_uv(folder: Path) -> None:
    """Make the environment, if it is not there, and install uv into it."""
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"making the virtual environment {folder.name}")
        try:
            venv.create(folder, with_pip=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(folder)
            sys.exit("lorikeet: Python's venv module lacks pip: install python3-venv")
    if not (folder / "bin" / "uv").exists():
        run([*pip(python), "--requirement", INSTALLER])


def install(folder: Path, locks: list[Path]) -> None:
    """Make the environment in `folder` match these locks."""
    stamps = {lock.name: hashlib.sha256(lock.read_bytes()).hexdigest() for lock in locks}
    if all(read_stamp(folder, name) == stamp for name, stamp in stamps.items()):
        return
    began = time.monotonic()
    install_uv(folder)
    for lock in locks:
        if read_stamp(folder, lock.name) != stamps[lock.name]:
            say(f"installing {lock.relative_to(ROOT)}")
            install_lock(folder, folder / "bin" / "python", lock)
            (folder / f".{lock.name}.sha256").write_text(stamps[lock.name])
    say(f"installed in {time.monotonic() - began:.0f} s")


def install_lock(folder: Path, python: Path, lock: Path) -> None:
    """Install one lock, with `--no-deps`, so that nothing outside the lock is installed."""
    pinned = requirements(lock.read_text())
    cpu_builds = [one for one in pinned if "+cpu" in one.split()[0]]
    if cpu_builds:
        install_torch(python, written(folder / f".{lock.name}.torch", cpu_builds))
    rest = written(folder / f".{lock.name}.rest", [one for one in pinned if one not in cpu_builds])
    uv = [folder / "bin" / "uv", "pip", "install", "--quiet", "--python", python, "--no-deps"]
    run([*uv, "--require-hashes", *index_options(python), "--requirement", rest])


def requirements(lock: str) -> list[str]:
    """Each requirement of a lock, with its hash lines."""
    return re.findall(r"^[^\s#].*(?:\n\s+--hash=.*)*", lock, re.MULTILINE)


def written(file: Path, pinned: list[str]) -> Path:
    file.write_text("".join(f"{one}\n" for one in pinned))
    return file


def install_torch(python: Path, requirement: Path) -> None:
    """Install torch's CPU build, from pip's configured sources or from PyTorch's index."""
    command = [*pip(python), "--no-deps", "--requirement", requirement]
    if subprocess.run([str(part) for part in command], capture_output=True).returncode:
        say(f"pip's own sources lack torch's CPU build: trying {TORCH_INDEX}")
        run([*command, "--index-url", TORCH_INDEX])


def pip(python: Path) -> list[object]:
    quiet = ["--quiet", "--disable-pip-version-check"]
    return [python, "-m", "pip", "install", *quiet, "--require-hashes"]


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
