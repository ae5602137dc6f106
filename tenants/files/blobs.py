"""The bytes of files, of their parts, of archives of tenants and of states of fine-tuning jobs, by
their ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from django.core.files.storage import Storage, storages

from tenants.storage import TENANT_FILES, opened, scratch, store

PLACE = TENANT_FILES
EXPORT_PREFIX = "export-"
ID = re.compile(rf"(file-|part_|ftjob-|{EXPORT_PREFIX})[0-9a-f]{{24}}")


def _storage() -> Storage:
    return storages[PLACE]


def open(id: str) -> IO[bytes]:
    """The file with this id, with a descriptor. Raises FileNotFoundError."""
    return opened(PLACE, _name(id))


def keep(id: str, file: IO[bytes]) -> None:
    """Make a temporary file, which may be moved, the one with this id.

    Raises:
        OSError: the disk is full, for example.
    """
    store(PLACE, _name(id), file)


@contextmanager
def made(id: str) -> Iterator[IO[bytes]]:
    """An empty file to write to, which becomes the file with this id if the block succeeds. It
    replaces an earlier file with that id."""
    with scratch() as file:
        yield file
        keep(id, file)


def remove(id: str) -> None:
    """Delete it; no error if it is gone."""
    _storage().delete(_name(id))


def exists(id: str) -> bool:
    return _storage().exists(_name(id))


def _name(id: str) -> str:
    assert ID.fullmatch(id), "ids are made here"
    return id
