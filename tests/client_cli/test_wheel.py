"""What `pip install` installs: a wheel with the whole command line, and nothing of the server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.environment import ROOT

CLIENT = ROOT / "clients" / "python"
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
START = "import sys; from lorikeet.__main__ import main; sys.argv = ['lorikeet', '--help']; main()"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, because the build may write beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(
        CLIENT, folder / "source", ignore=shutil.ignore_patterns("__pycache__")
    )
    command = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def test_it_has_every_module_and_its_command(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        modules = (CLIENT / "lorikeet").rglob("*.py")
        assert names == {path.relative_to(CLIENT).as_posix() for path in modules}
        told = {Path(name).name: archive.read(name).decode() for name in archive.namelist()}
    assert "lorikeet = lorikeet.__main__:main" in told["entry_points.txt"]
    assert "Requires-Dist: httpx" in told["METADATA"]


def test_it_starts_without_the_server(wheel: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(wheel)!r}); {START}"
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "batches" in done.stdout and "adapters" in done.stdout
