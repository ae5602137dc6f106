"""Adapters' files in their storage, by the folder of each upload: no models, no parsing."""

from __future__ import annotations

from typing import IO

from django.core.files.storage import Storage, storages

from tenants.storage import opened

PLACE = "adapters"
ORIGINALS = "original"
"""Where in an upload's folder the files are as they were sent, if they are served converted."""


def storage() -> Storage:
    return storages[PLACE]


def open_file(folder: str, name: str) -> IO[bytes]:
    """Open a file of an upload's folder, with a descriptor. Raises FileNotFoundError."""
    return opened(PLACE, f"{folder}/{name}")


def size(folder: str, name: str) -> int:
    """The file's size in bytes. Raises FileNotFoundError."""
    return storage().size(f"{folder}/{name}")
