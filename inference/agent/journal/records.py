"""The records of a journal, and the state they add up to. No IO.

In a file each record is preceded by its length and a CRC-32.
"""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from inference.errors import EngineLost
from inference.link.accounts import Account, LedgerEntry, Totals, Usage
from inference.link.session import AttemptKey

VERSION = 1
"""Of the record format. Newer versions are not read, older ones are."""

Figures = tuple[int, int, int, int]
"""Prompt, cached, completion and reasoning tokens so far."""

_Row = tuple[int, int, int, int, int]
"""An attempt's handle and its figures."""


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """One record. As in `inference.link.wire`: append fields with a default, never change one."""


class BegunRecord(_Record, tag="begun", frozen=True):
    """First record of a file. `billed` sums up the attempts that are acknowledged and gone."""

    id: str
    billed: Totals
    version: int = 1


class Opened(_Record, tag="opened", frozen=True):
    """`handle` replaces the id in progress records, at a quarter of the bytes. `inherited` holds
    the figures of the lower attempts that this one continues: its own figures start there."""

    handle: int
    id: str
    account: Account
    model: str
    attempt: int = 1
    inherited: Figures = (0, 0, 0, 0)


class Progressed(_Record, tag="progressed", frozen=True):
    """`estimated` are the handles of those whose figures are estimates."""

    figures: list[_Row]
    estimated: list[int] = []


class Closed(_Record, tag="closed", frozen=True):
    entry: LedgerEntry


class Acknowledged(_Record, tag="acknowledged", frozen=True):
    attempts: list[AttemptKey]


AnyRecord = BegunRecord | Opened | Progressed | Closed | Acknowledged

_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AnyRecord).decode

PREFIX = struct.Struct("<II")
"""In front of each record: its length in bytes and its CRC-32."""
_NOT_ZERO = re.compile(rb"[^\0]")


def framed(record: AnyRecord) -> bytes:
    """The record as it is written to a file."""
    payload = _encode(record)
    return PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def whole(data: bytes) -> Iterator[memoryview]:
    """The encoded payload of each intact record; torn and damaged ones are skipped."""
    view, start = memoryview(data), 0
    while (begin := start + PREFIX.size) <= len(data):
        length, crc = PREFIX.unpack_from(data, start)
        payload = view[begin : begin + length]
        # Lost blocks read as zeros, and the CRC-32 of an empty payload is zero.
        if length and len(payload) == length and zlib.crc32(payload) == crc:
            yield payload
            start = begin + length
        else:  # look for the next record, whose length may begin with up to three zero bytes
            shown = _NOT_ZERO.search(data, start)
            start = max(start + 1, shown.start() - 3) if shown else len(data)


class JournalState:
    """What the records so far add up to."""

    def __init__(self) -> None:
        self.id = ""
        self.billed = Totals()
        self.journaled = Totals()
        self.open: dict[AttemptKey, Opened] = {}
        self.figures: dict[int, _Row] = {}
        self.estimated: set[int] = set()
        """Handles whose figures are estimates."""
        self.closed: dict[AttemptKey, LedgerEntry] = {}

    def apply(self, record: AnyRecord) -> None:
        """Update the state by one record."""
        match record:
            case Opened():
                self.open[record.id, record.attempt] = record
            case Progressed(figures, estimated):
                for row in figures:
                    self.figures[row[0]] = row
                    self.estimated.discard(row[0])
                self.estimated.update(estimated)
            case Closed(entry):
                self._close(entry)
            case Acknowledged(attempts):
                for attempt in self.closed.keys() & attempts:
                    self.billed = self.billed.plus(self.closed.pop(attempt).usage)
            case begun:
                self.id, self.billed, self.journaled = begun.id, begun.billed, begun.billed

    def _close(self, entry: LedgerEntry) -> None:
        attempt = entry.id, entry.attempt
        if opened := self.open.pop(attempt, None):  # absent when a snapshot is read
            self.figures.pop(opened.handle, None)
            self.estimated.discard(opened.handle)
        self.closed[attempt] = entry
        self.journaled = self.journaled.plus(entry.usage)

    def snapshot(self) -> Iterable[AnyRecord]:
        """Records that reproduce this state. Any thread may read them: later records of this
        state don't change them."""
        begun = BegunRecord(self.id, self.billed, VERSION)
        closed, opened = list(self.closed.values()), list(self.open.values())
        progressed = Progressed(list(self.figures.values()), list(self.estimated))
        return itertools.chain([begun], map(Closed, closed), opened, [progressed])

    def lose(self) -> None:
        """Close all open attempts as lost with their engine."""
        for opened in list(self.open.values()):
            row = self.figures.get(opened.handle, (opened.handle, *opened.inherited))
            _, prompt, cached, completion, reasoning = row
            guessed = opened.handle in self.estimated
            usage = Usage(prompt, cached, completion, reasoning, is_estimated=guessed)
            self._close(entry_of(opened, usage, EngineLost.code))
        self.figures.clear()  # those left belong to attempts whose `Opened` was damaged
        self.estimated.clear()


def entry_of(opened: Opened, usage: Usage, finish_reason: str) -> LedgerEntry:
    """The ledger entry of an attempt that ended."""
    *_, inherited, _ = opened.inherited
    return LedgerEntry(
        opened.id, opened.account, opened.model, usage, finish_reason, opened.attempt, inherited
    )
