"""Where bytes are stored: three Django storages, `adapters`, `files` and `uploads`, which are
folders, or prefixes of a bucket of S3 (LORIKEET_S3_BUCKET).

What is stored is complete: it is written to a temporary file of this machine first.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory, TemporaryFile
from typing import IO

from django.conf import settings
from django.core.files import File
from django.core.files.storage import storages
from django.db.models import Model
from django.utils import timezone

TENANT_FILES = "files"
"""The storage of tenants' files."""
SCRATCH_PREFIX = "making-"
SCRATCH_PATTERNS = (f"{SCRATCH_PREFIX}*", "*.upload*")
"""What `scratch`, `scratch_folder` and Django's upload handlers leave behind if they are killed."""
AT_ONCE = 1000
"""Names that one query looks up."""
ABANDONED_AFTER = timedelta(days=1)
"""Longer than receiving a file, or writing one, can take."""


def is_away(error: BaseException) -> bool:
    """Whether the error says that the bucket can't be reached or refuses. Botocore takes a tenth of
    a second to import, so its classes are known by their module."""
    return any(base.__module__ == "botocore.exceptions" for base in type(error).__mro__)


class Movable(File):  # type: ignore[type-arg]
    """A file that a storage on the same file system may move instead of copying it."""

    def temporary_file_path(self) -> str:
        return str(self.name)


def opened(place: str, name: str) -> IO[bytes]:
    """A stored file with a descriptor: a temporary copy unless the storage is local.

    Raises:
        FileNotFoundError: there is none.
    """
    stored: File[bytes] = storages[place].open(name, "rb")
    try:
        stored.fileno()
    except io.UnsupportedOperation:
        copy = TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)
        with stored:
            shutil.copyfileobj(stored, copy)
        copy.seek(0)
        return copy
    assert stored.file is not None
    return stored.file  # without Django's own ends of lines


@contextmanager
def scratch() -> Iterator[IO[bytes]]:
    """A temporary file that `store` may move; deleted at the end otherwise."""
    os.makedirs(settings.FILE_UPLOAD_TEMP_DIR, exist_ok=True)
    file = NamedTemporaryFile(
        dir=settings.FILE_UPLOAD_TEMP_DIR, prefix=SCRATCH_PREFIX, delete=False
    )
    try:
        with file:
            yield file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(file.name)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder, beside the files of `scratch`."""
    parent = settings.FILE_UPLOAD_TEMP_DIR
    with TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=parent) as folder:
        yield Path(folder)


def remove_scratch() -> None:
    """Delete what processes of this machine that were killed left behind."""
    oldest = time.time() - ABANDONED_AFTER.total_seconds()
    folder = Path(settings.FILE_UPLOAD_TEMP_DIR)
    for path in (one for pattern in SCRATCH_PATTERNS for one in folder.glob(pattern)):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_strays(place: str, *models: type[Model]) -> None:
    """Delete the files that have no row of these models under their name: leftovers of processes
    that were killed, and of deleted tenants. A young file may get its row yet."""
    storage, before = storages[place], timezone.now() - ABANDONED_AFTER
    with suppress(FileNotFoundError):  # nothing was ever stored
        names = storage.listdir("")[1]
        known = {
            id
            for model in models
            for start in range(0, len(names), AT_ONCE)
            for id in model._default_manager.filter(
                pk__in=names[start : start + AT_ONCE]
            ).values_list("pk", flat=True)
        }
        for name in names:
            if name not in known and storage.get_modified_time(name) < before:
                storage.delete(name)


def store(place: str, name: str, file: IO[bytes]) -> None:
    """Store what was written to a temporary file with a path, in place of an earlier one of this
    name.

    Raises:
        OSError: the disk is full, for example.
    """
    file.flush()
    os.fsync(file.fileno())
    file.seek(0)
    storages[place].save(name, Movable(file, file.name))
