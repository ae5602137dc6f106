"""A journal's folder: its file, the next one, its lock."""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from inference.agent.journal.records import (
    PREFIX,
    VERSION,
    AnyRecord,
    BegunRecord,
    JournalState,
    decode,
    framed,
    whole,
)

log = structlog.get_logger(__name__)

FILE = "journal"
NEXT_FILE = "journal.next"
LOCK = "lock"


class JournalFailed(Exception):
    """The journal cannot be read or written."""


class JournalInUse(JournalFailed):
    """Another process holds the journal's lock."""


class JournalFile:
    """A file that grows by whole records; `size` in bytes. Its methods raise OSError."""

    def __init__(self, path: Path) -> None:
        """Create the file; an existing one is truncated."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._fd = os.open(path, flags, 0o600)
        self.size = 0
        self._torn = False

    def append(self, data: bytes) -> None:
        """Write all of `data`, or nothing."""
        self._mend()
        try:
            if os.write(self._fd, data) < len(data):
                raise OSError(errno.ENOSPC, "only a part was written")
        except OSError:
            self._torn = True
            with suppress(OSError):
                self._mend()
            raise
        self.size += len(data)

    def _mend(self) -> None:
        if self._torn:
            os.ftruncate(self._fd, self.size)
            self._torn = False

    def sync(self) -> None:
        """Wait until it is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        # A later write must fail, not go to another file that got the same descriptor.
        fd, self._fd = self._fd, -1
        os.close(fd)


def begin(folder: Path, state: JournalState) -> JournalFile:
    """Replace the old file, if there is one, by a new one that begins with a snapshot.

    Raises:
        OSError: the old file stays unchanged.
    """
    file = next_file(folder, state.snapshot())
    take_over(folder, file)
    _sync_folder(folder)
    return file


def next_file(folder: Path, records: Iterable[AnyRecord]) -> JournalFile:
    """Create a file that begins with these records, synced to disk, under its temporary name.

    Raises:
        OSError: it could not be created.
    """
    file = JournalFile(folder / NEXT_FILE)
    try:
        file.append(b"".join(map(framed, records)))
        file.sync()
    except OSError:
        discard(folder, file)
        raise
    return file


def take_over(folder: Path, file: JournalFile, gained: bytes = b"") -> None:
    """Append what the file in use gained meanwhile to the next one, and replace the former by it.

    Raises:
        OSError: the file in use stays, and the next one is deleted.
    """
    try:
        file.append(gained)
        os.replace(folder / NEXT_FILE, folder / FILE)
    except OSError:
        discard(folder, file)
        raise


def discard(folder: Path, file: JournalFile) -> None:
    """Delete the next file."""
    file.close()
    (folder / NEXT_FILE).unlink(missing_ok=True)


def retire(folder: Path, file: JournalFile) -> None:
    """Close a file that was replaced, and make the rename durable; both wait for the disk."""
    file.close()
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable. If that fails, only a power loss could still undo it."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        log.warning("journal_folder_not_synced", folder=str(folder), error=str(error))


def read(path: Path) -> JournalState:
    """The state that the file's intact records add up to; one with a new id if there is no file.

    Raises:
        JournalFailed: its first record is damaged, which no crash does, or another version of
            Lorikeet wrote it. It is kept in both cases.
    """
    state, data, kept = JournalState(), _bytes_of(path), 0
    for payload in whole(data):
        kept += PREFIX.size + len(payload)
        try:
            record = decode(payload)
        except msgspec.MsgspecError as error:
            raise JournalFailed(
                f"{path} was written by another version of Lorikeet: {error}"
            ) from None
        if isinstance(record, BegunRecord) and record.version > VERSION:
            raise JournalFailed(
                f"{path} was written by a newer version of Lorikeet: its records have "
                f"version {record.version}, this release reads up to {VERSION}"
            )
        state.apply(record)
    if data and not state.id:
        raise JournalFailed(
            f"{path} is damaged or not a journal; move it elsewhere to start with a new one"
        )
    if kept < len(data):
        log.warning("journal_cut", path=str(path), kept_bytes=kept, cut_bytes=len(data) - kept)
    state.id = state.id or uuid.uuid4().hex
    return state


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def lock_folder(folder: Path) -> int:
    """Lock the folder for this process; returns the descriptor that holds the lock.

    Raises:
        JournalInUse: another process holds the lock.
    """
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise JournalInUse(
            f"the journal in {folder} is in use by another agent; each agent needs its own folder"
        ) from None
    return fd


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Turn OSError into JournalFailed."""
    try:
        yield
    except OSError as error:
        raise JournalFailed(f"cannot {what}: {error}") from error
