"""An engine's folder for sockets and temporary files."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.agent import runtime_folder
from inference.process.environ import BadSetting


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's temporary folder; the path of a test's own is too long for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        for name in ("TMPDIR", "VLLM_RPC_BASE_PATH", "TORCHINDUCTOR_CACHE_DIR"):
            monkeypatch.setenv(name, "elsewhere")
        yield Path(folder)


def test_temporary_files_are_private_and_deleted_at_the_end(place: Path) -> None:
    with runtime_folder.used(Path("journal")) as folder:
        assert folder.is_relative_to(place)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
        assert Path(tempfile.mkdtemp()).parent == folder
        assert os.environ["VLLM_RPC_BASE_PATH"] == os.environ["TMPDIR"] == str(folder)
    assert not folder.exists()


def test_what_a_killed_engine_left_is_deleted_at_its_next_start(place: Path) -> None:
    killed = runtime_folder.used(Path("journal"))
    folder = killed.__enter__()
    (folder / "socket").touch()
    tempfile.tempdir = str(place)
    with runtime_folder.used(Path("other")) as other:
        assert other != folder and (folder / "socket").exists()
    tempfile.tempdir = str(place)
    with runtime_folder.used(Path("journal")) as again:
        assert again == folder and not list(folder.iterdir())


@pytest.mark.parametrize("fault", ["open to others", "a link", "a file"])
def test_a_folder_that_others_prepared_is_refused(place: Path, fault: str) -> None:
    parent = place / f"lorikeet-{os.getuid()}"
    if fault == "open to others":
        parent.mkdir()
        parent.chmod(0o755)
    elif fault == "a link":
        parent.symlink_to(place)
    else:
        parent.touch()
    with pytest.raises(BadSetting, match=str(parent)), runtime_folder.used(Path("journal")):
        pass


def test_a_path_that_is_too_long_for_sockets_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / ("x" * 50)))
    refused = pytest.raises(BadSetting, match=r"may have 70\. Set TMPDIR")
    with refused, runtime_folder.used(Path("journal")):
        pass
