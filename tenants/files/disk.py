"""The bytes of files and of archives of tenants, one file for each id in FILES_DIR, a folder that
consoles and workers share.

A complete file is renamed into the folder, and never written to again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from django.conf import settings

EXPORT_PREFIX = "export-"
ID = re.compile(rf"(file-|part_|{EXPORT_PREFIX})[0-9a-f]{{24}}")
SCRATCH_PREFIX = "making-"


def path(id: str) -> Path:
    """The path of the file with this id."""
    assert ID.fullmatch(id), "ids are made here"
    return Path(settings.FILES_DIR) / id


def adopt(id: str, source: str) -> None:
    """Make the file at the path `source`, on the same file system, the one with this id.

    Raises:
        OSError: the disk is full, for example.
    """
    with open(source, "rb") as file:
        os.fsync(file.fileno())
    os.rename(source, path(id))


@contextmanager
def made(id: str) -> Iterator[IO[bytes]]:
    """An empty file to write to, which becomes the file with this id if the block succeeds. It
    replaces an earlier file with that id."""
    file = NamedTemporaryFile(dir=settings.FILES_DIR, prefix=SCRATCH_PREFIX, delete=False)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(file.name, path(id))
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(file.name)
        raise


def remove(id: str) -> None:
    """Delete it; no error if it is gone."""
    path(id).unlink(missing_ok=True)
