"""The files of an upload until it is a version.

An upload in parts has one file, an archive, whose size alone says how much has arrived.

Each write holds the file's lock, and happens only if the file ends where the writer expects it to.
So if two requests send the same bytes, even to different consoles, one writes and the other is
refused; and a console that is killed leaves a file that is too short but never one that is wrong.

Consoles and workers of one installation share the folder FILE_UPLOAD_TEMP_DIR. On several machines
that takes a file system with locks (NFS 4, for example).
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

from django.conf import settings
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile

from inference.content import FILES, WEIGHTS
from tenants.models import UploadSession

PATTERN = "*.part"
FOLDER_PATTERN = "*.unpacked"
"""Folders of workers, each for one attempt to unpack one upload."""


class OffsetMoved(Exception):
    """Another request has written meanwhile; the argument is where the file now ends."""


def path(id: UUID, name: str = "") -> Path:
    """The path of the archive or, with `name`, of that one of the adapter's two files."""
    return Path(settings.FILE_UPLOAD_TEMP_DIR) / f"{id}{name}.part"


def create(id: UUID) -> None:
    """Make the empty file."""
    os.makedirs(settings.FILE_UPLOAD_TEMP_DIR, exist_ok=True)
    path(id).open("xb").close()


def adopt(id: UUID, files: Mapping[str, UploadedFile[bytes]]) -> None:
    """Move a request's files to the upload's paths and sync them; the keys of `files` are the
    `name` of `path`."""
    for name, file in files.items():
        assert isinstance(file, TemporaryUploadedFile), "see FILE_UPLOAD_HANDLERS"
        file.flush()
        os.fsync(file.fileno())
        os.rename(file.temporary_file_path(), path(id, name))
        file.close()


def durable_size(id: UUID) -> int:
    """The number of bytes that have been received and synced to disk. Raises FileNotFoundError."""
    with path(id).open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def take_weights(object_id: UUID, size: int, id: UUID) -> bool:
    """Make the file of one upload the weights of another; False if it does not have this size.

    Holds the file's lock: a request that still writes to it finds it gone (`Writer.restart`).

    Raises:
        FileNotFoundError: it is gone.
    """
    with path(object_id).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_size != size:
            return False
        os.fsync(file.fileno())
        os.rename(path(object_id), path(id, WEIGHTS))
    return True


@contextmanager
def scratch_folder(id: UUID) -> Iterator[Path]:
    """An empty folder on the same file system, for one attempt to unpack the upload."""
    parent, suffix = settings.FILE_UPLOAD_TEMP_DIR, FOLDER_PATTERN.removeprefix("*")
    with TemporaryDirectory(prefix=f"{id}-", suffix=suffix, dir=parent) as folder:
        yield Path(folder)


def remove(id: UUID) -> None:
    """Delete its files; no error if they are gone."""
    for name in ("", *FILES):
        path(id, name).unlink(missing_ok=True)


def discard(session: UploadSession) -> None:
    """Delete an upload and what has arrived of it. A version that it became stays."""
    remove(session.pk)
    session.delete()


class Writer:
    """Appends to the file from `offset` on. Its methods block, and any thread may call them."""

    def __init__(self, id: UUID, offset: int) -> None:
        """Raises FileNotFoundError."""
        self.offset = offset
        self._path = path(id)
        # Not by mode "ab", which would create the file of an ended upload anew.
        self._file = open(os.open(self._path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)
        # A cancelled request closes the file while a thread may still be writing to it.
        self._mutex = threading.Lock()

    def restart(self) -> None:
        """Empty the file; another writer of it then finds that it has moved.

        Raises:
            FileNotFoundError: it was taken over meanwhile (`take_weights`).
        """
        with self._mutex, self._locked():
            if not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno())):
                raise FileNotFoundError(self._path)
            self._file.truncate(0)
            self.offset = 0

    def append(self, data: bytes) -> None:
        """Write all of `data` at `offset`, and move `offset` on.

        Raises:
            OffsetMoved: the file does not end at `offset`. Nothing is written.
            OSError: the disk is full, for example. Bytes written before the error count.
        """
        with self._mutex, self._locked():
            end = os.fstat(self._file.fileno()).st_size
            if end != self.offset:
                raise OffsetMoved(end)
            rest = memoryview(data)
            while rest:
                written = self._file.write(rest) or 0
                self.offset += written
                rest = rest[written:]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        with self._mutex:
            self._file.close()
