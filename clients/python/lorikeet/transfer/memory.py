"""Remembers unfinished uploads, so that the next one of the same files can resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar, cast

from lorikeet import connection

Known = TypeVar("Known")
MOST = 100
"""Most uploads remembered; the ones that were changed least recently are forgotten."""


class Memory(Generic[Known]):
    """The value of one key, in a file of its own: uploads at the same time change no file that
    another one reads."""

    def __init__(self, key: str) -> None:
        name = hashlib.sha256(key.encode()).hexdigest()
        self._file = connection.folder() / "uploads" / f"{name}.json"

    def recall(self) -> Known | None:
        """The value remembered last, if any."""
        try:
            return cast("Known", json.loads(self._file.read_text()))
        except (FileNotFoundError, ValueError):
            return None

    def remember(self, known: Known) -> None:
        connection.write_private(self._file, json.dumps(known))
        files = sorted(self._file.parent.glob("*.json"), key=_changed_at)
        for old in files[:-MOST]:
            old.unlink(missing_ok=True)

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # another upload has ended
        return 0.0


def fingerprint(paths: Iterable[Path]) -> str:
    """Changes if the path, size or modification time of one of these files changes."""
    found = hashlib.sha256()
    for path in paths:
        facts = path.stat()
        found.update(f"{path.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return found.hexdigest()
