"""Extracts an adapter's two files from an upload, in a child process with limits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files import File
from django.db.models import QuerySet

from inference.content import CONFIG, FILES, WEIGHTS, digest_of
from tenants.adapters import sandbox
from tenants.adapters.checks.findings import shown
from tenants.adapters.storage import ORIGINALS, open_file
from tenants.adapters.uploads import objects, parts
from tenants.adapters.uploads.content import (
    COMMIT,
    CONVERTED,
    MAX_RATIO,
    RATIO_FREE_BYTES,
    UploadContents,
)
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.adapters.uploads.selection import is_archive_name
from tenants.models import LIVE, AdapterVersion, UploadSession
from tenants.storage import TENANT_FILES, Movable, opened, scratch_folder


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An upload's two files in `folder`, with the originals of those that were converted, and what
    is known of them."""

    folder: Path
    contents: UploadContents

    @property
    def digest(self) -> str:
        return digest_of(self.contents.config_sha256, self.contents.weights_sha256)

    @contextmanager
    def files(self) -> Iterator[Sequence[tuple[str, File[bytes]]]]:
        """The files by name, for a storage to save."""
        with ExitStack() as opened:
            names = [*FILES, *(f"{ORIGINALS}/{name}" for name in self.contents.converted)]
            paths = {name: self.folder / name for name in names}
            yield [
                (name, Movable(opened.enter_context(path.open("rb")), str(path)))
                for name, path in paths.items()
            ]


@contextmanager
def unpacked(session: UploadSession) -> Iterator[Unpacked]:
    """The two files of an upload that has arrived completely.

    The upload's own files stay, so that a worker which is killed in between loses nothing.

    Raises:
        UploadRefused: they are not an adapter's two files, or reading the upload failed.
        OtherFileNeeded: it is a commit with one of them.
        OSError: the upload's files are missing, or the disk is full.
    """
    with scratch_folder() as folder:
        with _refusing():
            oid, left_out = _reader(session)(session, folder)
            contents = _read_contents(folder, oid, left_out)
        yield Unpacked(folder, contents)


def in_folder(folder: Path) -> Unpacked:
    """An adapter whose two files are in this folder.

    Raises:
        UploadRefused: they are not an adapter's.
    """
    with _refusing():
        return Unpacked(folder, _read_contents(folder, "", []))


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse an upload that could not be read."""
    try:
        yield
    except sandbox.LimitExceeded as error:
        raise UploadRefused(
            UploadRefusal.CHECK_LIMIT_EXCEEDED,
            f"Reading the upload exceeded a resource limit ({error}).",
        ) from error
    except sandbox.Crashed as error:
        raise UploadRefused(
            UploadRefusal.CHECKS_FAILED,
            "The upload could not be read: the process that read it crashed.",
        ) from error


def _reader(session: UploadSession) -> Callable[[UploadSession, Path], tuple[str, list[str]]]:
    """Puts the two files as they were sent into the folder; returns the SHA-256 that the weights
    were announced with, if they were, and the names of what was left out."""
    if session.file_name == COMMIT:
        return _read_commit
    return _unpack if is_archive_name(session.file_name) else _read


def _unpack(session: UploadSession, folder: Path) -> tuple[str, list[str]]:
    most: int = settings.MAX_ADAPTER_BYTES
    task = {"task": "unpack", "max_bytes": most}
    limits = sandbox.SandboxLimits.for_bytes(
        min(most, RATIO_FREE_BYTES + MAX_RATIO * session.length_bytes)
    )
    return "", _written(task, "archive", session, folder, limits, "scratch")["left_out"]


def _written(
    task: dict[str, Any],
    source_name: str,
    session: UploadSession,
    folder: Path,
    limits: sandbox.SandboxLimits,
    *scratch: str,
) -> dict[str, Any]:
    """The outcome of a task that extracts the two files from the upload's single file; it also gets
    empty files of the names in `scratch`."""
    sent = folder / f"sent-{source_name}"
    _fetch(session, sent)
    with (
        sent.open("rb") as source,
        _new_files(folder, [*FILES, *scratch]) as targets,
    ):
        return sandbox.run(task, {source_name: (source, "rb"), **targets}, limits)


def _fetch(session: UploadSession, target: Path) -> None:
    """Write the upload's single file to the path `target`."""
    if not session.source_file:
        return parts.fetch(session.pk, parts.ONLY, target)
    try:
        with opened(TENANT_FILES, session.source_file) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, parts.COPY_BYTES)
    except FileNotFoundError:
        message = f"The file {session.source_file} was deleted before it was read."
        raise UploadRefused(UploadRefusal.FILE_MISSING, message) from None


@contextmanager
def _new_files(folder: Path, names: Sequence[str]) -> Iterator[sandbox.Files]:
    """Empty files for a task to write, by name; synced to disk when the block ends."""
    with ExitStack() as opened:
        files = {name: opened.enter_context((folder / name).open("x+b")) for name in names}
        yield {name: (file, "r+b") for name, file in files.items()}
        for file in files.values():
            os.fsync(file.fileno())


def _read_commit(session: UploadSession, folder: Path) -> tuple[str, list[str]]:
    written = _read_lines(session, folder)
    _check_parent(session, written["parent"])
    oid = str(written["oid"])
    for name in written["missing"]:
        oid = _take_over(session, name, folder / name) or oid
    if oid:
        objects.take_over(session, oid)
        parts.fetch(session.pk, WEIGHTS, folder / WEIGHTS)
    return oid, written["left_out"]


def _read_lines(session: UploadSession, folder: Path) -> dict[str, Any]:
    """Extract what a commit has of the two files. Returns a `commits.CommitContents`."""
    task = {"task": "commit", "max_bytes": settings.MAX_ADAPTER_BYTES}
    limits = sandbox.SandboxLimits.for_bytes(session.length_bytes)
    return _written(task, "commit", session, folder, limits)


def _earlier(session: UploadSession) -> QuerySet[AdapterVersion]:
    """The versions of the adapter that the session is for, the last one first."""
    of = {"adapter__tenant": session.tenant, "adapter__name": session.adapter_name}
    return AdapterVersion.objects.filter(**of).order_by("-number")


def _check_parent(session: UploadSession, parent: str) -> None:
    """Refuse a commit that follows another version than the last one, or the one that is live."""
    last = _earlier(session).first()
    if not parent or last is None or last.digest.startswith(parent):
        return
    live = _earlier(session).filter(aliases__name=LIVE, digest__startswith=parent)
    if not live.exists():
        raise UploadRefused(
            UploadRefusal.COMMIT_INVALID,
            f"The commit follows {shown(parent)}, which is not the last version.",
        )


def _take_over(session: UploadSession, name: str, target: Path) -> str:
    """Copy the file from the last version that has files, as it was sent, or else from a commit
    that waits for this one. Returns the SHA-256 by which that commit names it, if it does.

    Raises:
        OtherFileNeeded: there is neither.
    """
    version = _earlier(session).exclude(folder="").first()
    if version is None:
        return _take_from_waiting(session, name, target)
    stored = f"{ORIGINALS}/{name}" if name in version.converted else name
    with open_file(version.folder, stored) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy)
    return ""


def _take_from_waiting(session: UploadSession, name: str, target: Path) -> str:
    first = objects.waiting_commit(session.tenant, session.adapter_name)
    if first is None:
        raise objects.OtherFileNeeded
    with scratch_folder() as folder:
        written = _read_lines(first, folder)
        if name in written["missing"]:
            raise objects.OtherFileNeeded
        (folder / name).replace(target)
    return str(written["oid"])


def _read(session: UploadSession, folder: Path) -> tuple[str, list[str]]:
    for name in FILES:
        parts.fetch(session.pk, name, folder / name)
    return "", session.left_out


def _read_contents(folder: Path, oid: str, left_out: list[str]) -> UploadContents:
    """What is known of the two files. One that has to be converted moves to ORIGINALS, and the
    converted one takes its place."""
    size = sum((folder / name).stat().st_size for name in FILES)
    task, limits = {"task": "read", "oid": oid}, sandbox.SandboxLimits.for_bytes(size)
    with (
        (folder / CONFIG).open("rb") as config,
        (folder / WEIGHTS).open("rb") as weights,
        _new_files(folder, [f"{CONVERTED}{name}" for name in FILES]) as converted,
    ):
        sent = {CONFIG: (config, "rb"), WEIGHTS: (weights, "rb")}
        contents = UploadContents(**sandbox.run(task, {**sent, **converted}, limits))
    (folder / ORIGINALS).mkdir()
    for name in contents.converted:
        (folder / name).rename(folder / ORIGINALS / name)
        (folder / f"{CONVERTED}{name}").rename(folder / name)
    return replace(contents, left_out=left_out)
