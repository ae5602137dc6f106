"""The wheel `lorikeet`: all that the checkout's commands need, started outside of a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.client_cli.test_wheel import BUILD
from tests.environment import ROOT


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of a wheel built from what git would commit."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    with ZipFile(made) as archive:
        archive.extractall(folder / "content")
    return folder / "content"


def test_it_has_what_the_checkout_has(unpacked: Path) -> None:
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    folders = ("platform/", "tenants/", "inference/", "frontend/")
    tracked = {one.removeprefix("platform/") for one in listed if one.startswith(folders)}
    found = {
        path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()
    }
    assert tracked - found == set()
    extra = {one for one in found - tracked if not one.startswith(("frontend/docs/", "lorikeet-"))}
    assert extra == set()
    (points,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "lorikeet = gateway.start:command" in points.read_text()


def test_its_commands_start_anywhere_and_write_to_the_users_folder(
    unpacked: Path, tmp_path: Path
) -> None:
    code = "from gateway import start; print(*start.MANAGE); print(start.var_folder())"
    environment = {"PYTHONPATH": str(unpacked), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    asked = [[sys.executable, "-P", "-c", code], [sys.executable, "-P", "-m", "gateway", "engine"]]
    (told, refused) = (
        subprocess.run(one, cwd=tmp_path, env=environment, capture_output=True, text=True)
        for one in asked
    )
    manage, var = told.stdout.splitlines()
    assert manage == f"{sys.executable} -P -m gateway"
    assert var == f"{tmp_path}/.local/share/lorikeet"
    assert refused.stderr.startswith("lorikeet engine: LORIKEET_ENGINE_CREDENTIAL is not set")
