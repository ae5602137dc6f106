"""A ZIP that is written in one pass, with a manifest of what is in it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Self
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import msgspec

MANIFEST, README = "manifest.json", "README.txt"
CHUNK_BYTES = 1 << 20
Pulse = Callable[[], None]


def uninterrupted() -> None:
    """The pulse of an archive that nothing ends early."""


class _Summing:
    """Counts and hashes what is written to a member."""

    def __init__(self, file: IO[bytes], pulse: Pulse) -> None:
        self._file, self._pulse, self._sha256, self.size = file, pulse, hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        self._pulse()
        self._file.write(data)
        self._sha256.update(data)
        self.size += len(data)

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()


class ArchiveWriter:
    """Writes members one after another, each in pieces. `missing` are files that were gone.

    `pulse` is called before each piece; what it raises ends the archive.
    """

    def __init__(self, file: IO[bytes], pulse: Pulse) -> None:
        self._zip, self._pulse = ZipFile(file, "w"), pulse
        self.members: list[dict[str, Any]] = []
        self.missing: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._zip.close()  # else it would be closed after its file

    def lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add a file of JSON Lines; returns the number of rows."""
        count = 0
        with self._member(name, ZIP_DEFLATED) as (member, entry):
            for row in rows:
                member.write(msgspec.json.encode(row) + b"\n")
                count += 1
            entry["rows"] = count
        return count

    def copy(self, name: str, source: IO[bytes]) -> None:
        """Add a file with the content of another."""
        with self._member(name, ZIP_STORED) as (member, _):
            while chunk := source.read(CHUNK_BYTES):
                member.write(chunk)

    def describe(self, about: Mapping[str, Any], readme: str) -> None:
        """Add the texts that describe the archive, after everything else."""
        with self._member(README, ZIP_DEFLATED) as (member, _):
            member.write(readme.encode())
        manifest = {**about, "members": self.members, "missing": self.missing}
        self._zip.writestr(_info(MANIFEST, ZIP_DEFLATED), json.dumps(manifest, indent=2))

    @contextmanager
    def _member(self, name: str, method: int) -> Iterator[tuple[_Summing, dict[str, Any]]]:
        entry: dict[str, Any] = {"name": name}
        with self._zip.open(_info(name, method), "w", force_zip64=True) as file:
            member = _Summing(file, self._pulse)
            yield member, entry
        self.members.append({**entry, "bytes": member.size, "sha256": member.digest})


def _info(name: str, method: int) -> ZipInfo:
    info = ZipInfo(name, time.gmtime()[:6])
    info.compress_type, info.external_attr = method, 0o600 << 16
    return info
