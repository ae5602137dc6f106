"""Reads engines' journals with separate code, because the product's reader would hide its own bugs.

A file is a sequence of records, each preceded by its length and CRC-32, as
`inference.agent.journal.journal` describes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.labs.chaos.judging.facts import Counts, Entry, JournalEnd

_PREFIX = struct.Struct("<II")


@dataclass
class JournalFile:
    """The content of one file: its journal's id, the attempts closed in it, and those open or
    unacknowledged at its end.

    `billed` counts the attempts that were acknowledged and dropped when the file was begun.
    """

    id: str = ""
    billed: int = 0
    closed: list[Entry] = field(default_factory=list)
    open: set[tuple[str, int]] = field(default_factory=set)
    unacknowledged: set[tuple[str, int]] = field(default_factory=set)
    acknowledged: int = 0

    @property
    def end(self) -> JournalEnd:
        """The state of the journal at the end of this file."""
        ever = self.billed + self.acknowledged + len(self.unacknowledged)
        return JournalEnd(self.id, ever, len(self.open), len(self.unacknowledged))

    def _apply(self, kind: str, rest: list[Any]) -> None:
        match kind, rest:
            case "begun", [id, [billed, *_], _]:
                self.id, self.billed = id, billed
            case "opened", [_, id, _, _, attempt, *_]:
                self.open.add((id, attempt))
            case "closed", [entry]:
                closed = _entry(self.id, entry)
                self.closed.append(closed)
                self.open.discard(closed.key)
                self.unacknowledged.add(closed.key)
            case "acknowledged", [attempts]:
                known = {(id, attempt) for id, attempt in attempts}
                self.acknowledged += len(known)
                self.unacknowledged -= known
            case "progressed", _:
                pass
            case _:
                raise ValueError(f"unknown record {kind!r} in a journal")


def read(path: Path) -> JournalFile:
    """Read the file, up to a record that a kill has torn."""
    found = JournalFile()
    for payload in _whole(path.read_bytes()):
        kind, *rest = msgspec.msgpack.decode(payload)
        found._apply(kind, rest)
    return found


def _whole(data: bytes) -> Iterator[bytes]:
    start = 0
    while start + _PREFIX.size <= len(data):
        length, crc = _PREFIX.unpack_from(data, start)
        start += _PREFIX.size
        payload = data[start : start + length]
        if not length or len(payload) < length or zlib.crc32(payload) != crc:
            return
        start += length
        yield payload


def _entry(journal: str, entry: list[Any]) -> Entry:
    id, account, model, usage, finish_reason, attempt, inherited, *_ = entry
    tenant_id, key_id, started_at, *_ = account
    return Entry(
        id=id,
        journal=journal,
        tenant_id=tenant_id,
        key_id=key_id,
        model=model,
        started_at=started_at,
        attempt=attempt,
        inherited=inherited,
        counts=Counts(*usage[:3]),
        finish_reason=finish_reason,
    )
