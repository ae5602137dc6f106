"""Remembers unfinished uploads, so that the next one of the same files can resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from lorikeet import connection

Known = TypeVar("Known")
MOST = 100
"""Most uploads remembered; the oldest are forgotten."""


class Memory(Generic[Known]):
    """The value of one key, in a file that all uploads share."""

    def __init__(self, key: str) -> None:
        self._file = connection.folder() / "uploads.json"
        self._key = key

    def recall(self) -> Known | None:
        """The value remembered last, if any."""
        return cast("Known | None", self._all().get(self._key))

    def remember(self, known: Known) -> None:
        self._write(self._all() | {self._key: known})

    def forget(self) -> None:
        known = self._all()
        if known.pop(self._key, None):
            self._write(known)

    def _all(self) -> dict[str, Any]:
        try:
            known: dict[str, Any] = json.loads(self._file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return known

    def _write(self, known: dict[str, Any]) -> None:
        connection.write_private(self._file, json.dumps(dict(list(known.items())[-MOST:])))


def fingerprint(paths: Iterable[Path]) -> str:
    """Changes if the path, size or modification time of one of these files changes."""
    found = hashlib.sha256()
    for path in paths:
        facts = path.stat()
        found.update(f"{path.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return found.hexdigest()
