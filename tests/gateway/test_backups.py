"""What a backup refuses. That everything comes back is tested in `tests/stack/test_up.py`."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from pytest_django import Settings

from gateway import backups
from gateway.backups import BackupFailed

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Path:
    found = tmp_path / "var"
    found.mkdir()
    settings.VAR = found
    empty = {name: found / name for name in ("adapters", "files", "journals")}
    monkeypatch.setattr(backups, "folders", lambda: empty)
    return found


def written(archive: Path, **files: bytes) -> Path:
    with tarfile.open(archive, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive


def test_an_archive_is_never_overwritten(tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar"
    archive.write_bytes(b"an earlier one")
    with pytest.raises(BackupFailed, match="exists already"):
        backups.back_up(archive, print)
    assert archive.read_bytes() == b"an earlier one"


def test_a_backup_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORIKEET_DATABASE_URL", f"postgresql:///none?host={tmp_path}")
    with pytest.raises(BackupFailed, match="pg_dump failed: "):
        backups.back_up(tmp_path / "backup.tar", print)
    assert [one.name for one in tmp_path.iterdir()] == ["var"]


def test_nothing_is_restored_over_data(tmp_path: Path, var: Path) -> None:
    with pytest.raises(BackupFailed, match=r"The database has \d+ tables already"):
        backups.restore(tmp_path / "backup.tar", print)


def test_nor_into_a_folder_with_files(
    tmp_path: Path, var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "TABLES", "SELECT 0")
    (var / "adapters").mkdir()
    (var / "adapters" / "one").write_text("of somebody")
    with pytest.raises(BackupFailed, match="adapters is not empty"):
        backups.restore(tmp_path / "backup.tar", print)


def test_a_restore_that_fails_leaves_nothing(
    tmp_path: Path, var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "TABLES", "SELECT 0")
    about = json.dumps({"format": 1, "at": "2026-11-28T00:00:00Z"}).encode()
    archive = written(tmp_path / "b.tar", backup_json=about, database_dump=b"not a dump",
                      **{"adapters/acme/one": b"weights"})  # fmt: skip
    with pytest.raises(BackupFailed, match="pg_restore failed: "):
        backups.restore(archive, print)
    assert list((var / "adapters").iterdir()) == [] and not (var / "secrets.env").exists()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "is not a backup"),
        ({"backup_json": b"{}"}, "has the format None, not 1"),
        ({"backup_json": json.dumps({"format": 2}).encode()}, "has the format 2, not 1"),
        ({"/etc/passwd": b"", "../../up": b"x"}, "is not a backup"),
    ],
)
def test_other_archives_are_refused(
    tmp_path: Path, var: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], said: str
) -> None:
    monkeypatch.setattr(backups, "TABLES", "SELECT 0")
    with pytest.raises(BackupFailed, match=said):
        backups.restore(written(tmp_path / "backup.tar", **files), print)
    assert list(var.iterdir()) == []
    (tmp_path / "page.html").write_text("<html>")
    with pytest.raises(BackupFailed, match="is not a backup"):
        backups.restore(tmp_path / "page.html", print)
