"""The Django storage of adapter files, and reading from it: no models, no parsing."""

from __future__ import annotations

from django.core.files import File
from django.core.files.storage import Storage, storages

ORIGINALS = "original"
"""Where in an upload's folder the files are as they were sent, if they are served converted."""


def storage() -> Storage:
    return storages["adapters"]


def open_file(folder: str, name: str) -> File[bytes]:
    """Open a file of an upload's folder for reading. Raises FileNotFoundError."""
    file: File[bytes] = storage().open(f"{folder}/{name}", "rb")
    return file


def size(folder: str, name: str) -> int:
    """The file's size in bytes. Raises FileNotFoundError."""
    return storage().size(f"{folder}/{name}")
