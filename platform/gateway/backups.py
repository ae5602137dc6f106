"""A backup of an installation in one tar: database, adapters, tenants' files, journals, secrets.

A running installation can be backed up. Journals are copied before the database is dumped: what is
no longer in a journal is in the ledger by then. Files are copied before it too, and those that came
meanwhile after it: the dump refers to no file that the archive lacks, unless it was deleted during
the backup.

Restoring wants an installation without data, and leaves it so if anything fails.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.core.files.storage import FileSystemStorage, storages
from django.db import connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gateway.local.postgres import BIN, ENVIRONMENT, site_packages
from gateway.start import SECRETS
from tenants.adapters import storage
from tenants.files import blobs
from tenants.storage import SCRATCH_PREFIX

FORMAT = 1
ABOUT, DUMP, KEPT_SECRETS, FACTS = "backup.json", "database.dump", "secrets.env", "up.json"
JOURNALS = "journals"
TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
NOT_KEPT = (blobs.EXPORT_PREFIX, SCRATCH_PREFIX)
"""Archives of tenants, which have stored prompts in plain text and can be made again."""
SECRET_NAMES = (*SECRETS, "LORIKEET_CONTENT_KEY_PREVIOUS")
"""The secrets without which data can't be read: keys, receipts and stored content depend on
them."""


class BackupFailed(Exception):
    """Says in one line why the backup was not made or not restored."""


def folders() -> dict[str, Path]:
    """The folders to keep, by their names in the archive. What is in S3 is kept there."""
    places = {name: storages[name] for name in (storage.PLACE, blobs.PLACE)}
    local = {
        name: Path(place.location)
        for name, place in places.items()
        if isinstance(place, FileSystemStorage)
    }
    journals = os.environ.get("LORIKEET_ENGINE_JOURNAL_DIR") or settings.VAR / "journal"
    return local | {JOURNALS: Path(journals)}


def back_up(archive: Path, report: Callable[[str], None]) -> str:
    """Write the archive, readable only by its owner; returns its time.

    Raises:
        BackupFailed: it exists, the disk is full, or the database cannot be dumped.
    """
    if archive.exists():
        raise BackupFailed(f"{archive} exists already.")
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".backup-") as place:
            draft = Path(place) / archive.name
            with tarfile.open(draft, mode="w", dereference=True) as tar:
                at = _fill(tar, report)
            draft.rename(archive)
    except OSError as error:
        raise BackupFailed(str(error)) from None
    return at


def _fill(tar: tarfile.TarFile, report: Callable[[str], None]) -> str:
    at, added = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", set[str]()
    _add_bytes(tar, ABOUT, json.dumps({"format": FORMAT, "at": at}).encode())
    for name, folder in folders().items():
        report(f"{name}: {_add_folder(tar, name, folder, added):,} bytes")
    with tempfile.NamedTemporaryFile(dir=settings.VAR) as dump:
        _run("pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--file", dump.name)
        tar.add(dump.name, DUMP)
        report(f"database: {Path(dump.name).stat().st_size:,} bytes")
    for name, folder in folders().items():
        if name != JOURNALS:
            _add_folder(tar, name, folder, added)
    kept = [f"{name}={os.environ[name]}\n" for name in SECRET_NAMES if os.environ.get(name)]
    _add_bytes(tar, KEPT_SECRETS, "".join(kept).encode())
    if (facts := settings.VAR / FACTS).exists():
        tar.add(facts, FACTS)
    return at


def _add_folder(tar: tarfile.TarFile, name: str, folder: Path, added: set[str]) -> int:
    """Add the folder's files that are not added yet; returns their size."""
    size = 0
    for path in sorted(folder.rglob("*")):
        inside = f"{name}/{path.relative_to(folder)}"
        if inside in added:
            continue
        try:
            if path.is_symlink() or not path.is_file() or path.name.startswith(NOT_KEPT):
                continue
            with path.open("rb") as file:  # of a journal that grows meanwhile as much as there is
                member = tar.gettarinfo(arcname=inside, fileobj=file)
                member.mode = 0o600
                tar.addfile(member, file)
        except FileNotFoundError:  # deleted meanwhile
            continue
        added.add(inside)
        size += member.size
    return size


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, time.time()
    tar.addfile(member, io.BytesIO(data))


def restore(archive: Path, report: Callable[[str], None]) -> str:
    """Restore the archive into this installation, which must have no data; returns the archive's
    time.

    Raises:
        BackupFailed: it is none of these archives, this installation has data, or the database
            cannot be restored.
    """
    _require_nothing()
    with tempfile.TemporaryDirectory(dir=settings.VAR, prefix="restore-") as place:
        found = Path(place)
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(found, filter="data")
            about = json.loads((found / ABOUT).read_bytes())
        except (OSError, tarfile.TarError, ValueError) as error:
            raise BackupFailed(f"{archive} is not a backup: {error}") from None
        if about.get("format") != FORMAT:
            raise BackupFailed(f"{archive} has the format {about.get('format')}, not {FORMAT}.")
        moved: list[Path] = []
        try:
            for name, folder in folders().items():
                report(f"{name}: {_size(found / name):,} bytes")
                moved += _move(found / name, folder)
            _run("pg_restore", "--no-owner", "--no-privileges", "--single-transaction",
                 "--exit-on-error", str(found / DUMP))  # fmt: skip
        except BaseException:
            for one in moved:
                shutil.rmtree(one) if one.is_dir() else one.unlink()
            raise
        report("database: restored")
        for name in (KEPT_SECRETS, FACTS):
            if (found / name).exists():
                shutil.move(found / name, settings.VAR / name)
    return str(about["at"])


def _size(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def _move(source: Path, folder: Path) -> list[Path]:
    """Move what is in one folder into another, which is empty; returns what is there then."""
    folder.mkdir(parents=True, exist_ok=True)
    found = list(source.iterdir()) if source.exists() else []
    return [Path(shutil.move(one, folder / one.name)) for one in found]


def _require_nothing() -> None:
    with connection.cursor() as cursor:
        cursor.execute(TABLES)
        (tables,) = cursor.fetchone() or (0,)
    if tables:
        raise BackupFailed(
            f"The database has {tables} tables already; a backup is restored into an empty one."
        )
    for folder in folders().values():
        if folder.exists() and any(folder.iterdir()):
            raise BackupFailed(f"{folder} is not empty; a backup is restored beside no other data.")


def _run(program: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs on the installation's database. The password is not among
    its arguments, which every account of the machine can read.

    Raises:
        BackupFailed: it failed.
    """
    given = conninfo_to_dict(os.environ["LORIKEET_DATABASE_URL"])
    password = given.pop("password", None)
    command = [_program(program), "--dbname", make_conninfo("", **given), *arguments]
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    if password:
        environment["PGPASSWORD"] = str(password)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BackupFailed(f"{program} failed: {lines[0]}")


def _program(name: str) -> str:
    """The system's program or the embedded server's: of the release of the database's server if
    there is such a one, since others may not understand each other."""
    embedded = str(site_packages() / BIN / name)
    found = [one for one in (shutil.which(name), embedded) if one is not None]
    return next((one for one in found if _release(one) == _server_release()), embedded)


def _release(program: str) -> int:
    """As 18 of "pg_dump (PostgreSQL) 18.1"."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\) (\d+)", output)
    return int(found[1]) if found else 0


def _server_release() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        (number,) = cursor.fetchone() or ("0",)
    return int(number) // 10_000
