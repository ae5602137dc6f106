"""Gets an adapter's two files out of an upload, which a child process reads within limits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files import File

from inference.content import FILES, digest_of
from tenants.adapters import sandbox
from tenants.adapters.uploads import parts
from tenants.adapters.uploads.content import (
    MAX_RATIO,
    RATIO_FREE_BYTES,
    Contents,
    is_archive_name,
)
from tenants.adapters.uploads.refusals import Refusal, UploadRefused
from tenants.models import UploadSession


class _Movable(File):  # type: ignore[type-arg]
    """A file that a storage on the same file system may move instead of copying it."""

    def temporary_file_path(self) -> str:
        return str(self.name)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An upload's two files in `folder`, and what was found in them."""

    folder: Path
    contents: Contents

    @property
    def digest(self) -> str:
        return digest_of(self.contents.config_sha256, self.contents.weights_sha256)

    @contextmanager
    def files(self) -> Iterator[Sequence[tuple[str, File[bytes]]]]:
        """The two files by name, for a storage to take."""
        with ExitStack() as opened:
            paths = [self.folder / name for name in FILES]
            yield [
                (path.name, _Movable(opened.enter_context(path.open("rb")), str(path)))
                for path in paths
            ]


@contextmanager
def unpacked(session: UploadSession) -> Iterator[Unpacked]:
    """The files of an upload of which everything has arrived.

    The upload's own files stay, so that a worker which is killed in between loses nothing.

    Raises:
        UploadRefused: they are not an adapter's two files, or looking for them failed.
        OSError: the upload's files are not here, or the disk is full.
    """
    with parts.scratch_folder(session.pk) as folder:
        try:
            look = _unpack if is_archive_name(session.file_name) else _read
            contents = Contents(**look(session, folder))
        except sandbox.LimitExceeded as error:
            raise UploadRefused(
                Refusal.CHECK_LIMIT_EXCEEDED,
                f"Reading the upload took more than is allowed ({error}).",
            ) from error
        except sandbox.Crashed as error:
            raise UploadRefused(
                Refusal.CHECKS_FAILED, "The upload could not be read: reading it crashed."
            ) from error
        yield Unpacked(folder, contents)


def _unpack(session: UploadSession, folder: Path) -> dict[str, Any]:
    most: int = settings.MAX_ADAPTER_BYTES
    task = {"task": "unpack", "name": session.file_name, "max_bytes": most}
    limits = sandbox.Limits.for_bytes(
        min(most, RATIO_FREE_BYTES + MAX_RATIO * session.length_bytes)
    )
    with ExitStack() as opened:
        archive = opened.enter_context(parts.path(session.pk).open("rb"))
        targets = {name: opened.enter_context((folder / name).open("x+b")) for name in FILES}
        files = {name: (target, "r+b") for name, target in targets.items()}
        found = sandbox.run(task, {"archive": (archive, "rb"), **files}, limits)
        for target in targets.values():
            os.fsync(target.fileno())
    return found


def _read(session: UploadSession, folder: Path) -> dict[str, Any]:
    with ExitStack() as opened:
        files = {}
        for name in FILES:
            _link(parts.path(session.pk, name), folder / name)
            files[name] = (opened.enter_context((folder / name).open("rb")), "rb")
        return sandbox.run({"task": "read"}, files, sandbox.Limits.for_bytes(session.length_bytes))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # not every shared file system has hard links
        shutil.copyfile(source, target)
