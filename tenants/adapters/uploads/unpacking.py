"""Extracts an adapter's two files from an upload, in a child process with limits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files import File

from inference.content import CONFIG, FILES, WEIGHTS, digest_of
from tenants.adapters import sandbox
from tenants.adapters.uploads import objects, parts
from tenants.adapters.uploads.content import (
    COMMIT,
    MAX_RATIO,
    RATIO_FREE_BYTES,
    UploadContents,
)
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.adapters.uploads.selection import is_archive_name
from tenants.models import UploadSession


class _Movable(File):  # type: ignore[type-arg]
    """A file that a storage on the same file system may move instead of copying it."""

    def temporary_file_path(self) -> str:
        return str(self.name)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An upload's two files in `folder`, and what is known of them."""

    folder: Path
    contents: UploadContents

    @property
    def digest(self) -> str:
        return digest_of(self.contents.config_sha256, self.contents.weights_sha256)

    @contextmanager
    def files(self) -> Iterator[Sequence[tuple[str, File[bytes]]]]:
        """The two files by name, for a storage to save."""
        with ExitStack() as opened:
            paths = [self.folder / name for name in FILES]
            yield [
                (path.name, _Movable(opened.enter_context(path.open("rb")), str(path)))
                for path in paths
            ]


@contextmanager
def unpacked(session: UploadSession) -> Iterator[Unpacked]:
    """The two files of an upload that has arrived completely.

    The upload's own files stay, so that a worker which is killed in between loses nothing.

    Raises:
        UploadRefused: they are not an adapter's two files, or reading the upload failed.
        OSError: the upload's files are missing here, or the disk is full.
    """
    with parts.scratch_folder(session.pk) as folder:
        try:
            contents = UploadContents(**_reader(session)(session, folder))
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
        yield Unpacked(folder, contents)


def _reader(session: UploadSession) -> Callable[[UploadSession, Path], dict[str, Any]]:
    if session.file_name == COMMIT:
        return _read_commit
    return _unpack if is_archive_name(session.file_name) else _read


def _unpack(session: UploadSession, folder: Path) -> dict[str, Any]:
    most: int = settings.MAX_ADAPTER_BYTES
    task = {"task": "unpack", "max_bytes": most}
    limits = sandbox.SandboxLimits.for_bytes(
        min(most, RATIO_FREE_BYTES + MAX_RATIO * session.length_bytes)
    )
    return _written(task, "archive", session, folder, limits, "scratch")


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
    with ExitStack() as opened:
        source = opened.enter_context(parts.path(session.pk).open("rb"))
        names = (*FILES, *scratch)
        targets = {name: opened.enter_context((folder / name).open("x+b")) for name in names}
        files = {name: (target, "r+b") for name, target in targets.items()}
        found = sandbox.run(task, {source_name: (source, "rb"), **files}, limits)
        for target in targets.values():
            os.fsync(target.fileno())
    return found


def _read_commit(session: UploadSession, folder: Path) -> dict[str, Any]:
    task = {"task": "commit", "max_bytes": settings.MAX_ADAPTER_BYTES}
    limits = sandbox.SandboxLimits.for_bytes(session.length_bytes)
    written = _written(task, "commit", session, folder, limits)
    oid = str(written["oid"])
    if oid:
        objects.take_over(session, oid)
        (folder / WEIGHTS).unlink()
        _link(parts.path(session.pk, WEIGHTS), folder / WEIGHTS)
    found = _look(folder)
    if oid and found["weights_sha256"] != oid:
        message = f"The content of {WEIGHTS} does not match its SHA-256. Push it again."
        raise UploadRefused(UploadRefusal.OBJECT_DIFFERS, message)
    return found | {"left_out": written["left_out"]}


def _read(session: UploadSession, folder: Path) -> dict[str, Any]:
    shutil.copyfile(parts.path(session.pk, CONFIG), folder / CONFIG)
    _link(parts.path(session.pk, WEIGHTS), folder / WEIGHTS)
    return _look(folder) | {"left_out": session.left_out}


def _look(folder: Path) -> dict[str, Any]:
    """What is known of the two files in the folder; the configuration's byte order mark goes."""
    size = sum((folder / name).stat().st_size for name in FILES)
    with ExitStack() as opened:
        files = {
            name: (opened.enter_context((folder / name).open(mode)), mode)
            for name, mode in ((CONFIG, "r+b"), (WEIGHTS, "rb"))
        }
        return sandbox.run({"task": "read"}, files, sandbox.SandboxLimits.for_bytes(size))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # not every shared file system has hard links
        shutil.copyfile(source, target)
