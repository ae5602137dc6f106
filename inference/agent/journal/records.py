"""The records of a journal, and what they add up to. No IO.

In a file each has its length and a CRC-32 in front.
"""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from inference.errors import EngineLost
from inference.link.session import Attempt
from inference.link.wire import Account, LedgerEntry, Totals, Usage

VERSION = 2
"""Of the records. Newer ones are not read, older ones are."""

Figures = tuple[int, int, int, int]
"""Prompt, cached, completion and reasoning tokens so far."""

_Row = tuple[int, int, int, int, int]
"""An attempt's handle and its figures."""


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """One record. As in `inference.link.wire`: append fields with a default, never change one."""


class Begun(_Record, tag="begun", frozen=True):
    """First record of a file. `billed` sums up the attempts that are acknowledged and gone."""

    id: str
    billed: Totals
    version: int = 1


class Opened(_Record, tag="opened", frozen=True):
    """`handle` stands for the id in progress records: a fourth of the bytes. `inherited` is what
    the attempt goes on from, of lower ones: its first figures."""

    handle: int
    id: str
    account: Account
    model: str
    attempt: int = 1
    inherited: Figures = (0, 0, 0, 0)


class Progressed(_Record, tag="progressed", frozen=True):
    figures: list[_Row]


class Closed(_Record, tag="closed", frozen=True):
    entry: LedgerEntry


class Acknowledged(_Record, tag="acknowledged", frozen=True):
    """`ids` are of first attempts, `attempts` of all others."""

    ids: list[str]
    attempts: list[Attempt] = []

    @classmethod
    def of(cls, attempts: Iterable[Attempt]) -> Acknowledged:
        known = list(attempts)
        return cls(
            [id for id, number in known if number == 1], [one for one in known if one[1] > 1]
        )

    @property
    def all(self) -> Iterator[Attempt]:
        """Those of both."""
        yield from ((id, 1) for id in self.ids)
        yield from self.attempts


AnyRecord = Begun | Opened | Progressed | Closed | Acknowledged

_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AnyRecord).decode

PREFIX = struct.Struct("<II")
"""In front of each record: its length in bytes and its CRC-32."""
_NOT_ZERO = re.compile(rb"[^\0]")


def framed(record: AnyRecord) -> bytes:
    """The record as it stands in a file."""
    payload = _encode(record)
    return PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def whole(data: bytes) -> Iterator[memoryview]:
    """The records, encoded, without what is torn or damaged."""
    view, start = memoryview(data), 0
    while (begin := start + PREFIX.size) <= len(data):
        length, crc = PREFIX.unpack_from(data, start)
        payload = view[begin : begin + length]
        # Lost blocks read as zeros, and the CRC of nothing is zero.
        if length and len(payload) == length and zlib.crc32(payload) == crc:
            yield payload
            start = begin + length
        else:  # somewhere behind it the next one begins, of whose length only a byte may show
            shown = _NOT_ZERO.search(data, start)
            start = max(start + 1, shown.start() - 3) if shown else len(data)


class State:
    """What the records so far add up to."""

    def __init__(self) -> None:
        self.id = ""
        self.billed = Totals()
        self.journaled = Totals()
        self.open: dict[Attempt, Opened] = {}
        self.figures: dict[int, _Row] = {}
        self.closed: dict[Attempt, LedgerEntry] = {}

    def apply(self, record: AnyRecord) -> None:
        """What the record says happened."""
        match record:
            case Opened():
                self.open[record.id, record.attempt] = record
            case Progressed(figures):
                for row in figures:
                    self.figures[row[0]] = row
            case Closed(entry):
                self._close(entry)
            case Acknowledged():
                for attempt in self.closed.keys() & record.all:
                    self.billed = self.billed.plus(self.closed.pop(attempt).usage)
            case begun:
                self.id, self.billed, self.journaled = begun.id, begun.billed, begun.billed

    def _close(self, entry: LedgerEntry) -> None:
        attempt = entry.id, entry.attempt
        if opened := self.open.pop(attempt, None):  # not where a snapshot says it
            self.figures.pop(opened.handle, None)
        self.closed[attempt] = entry
        self.journaled = self.journaled.plus(entry.usage)

    def snapshot(self) -> Iterable[AnyRecord]:
        """Records that lead to this state; to be read by any thread, whatever follows here."""
        begun = Begun(self.id, self.billed, VERSION)
        closed, opened = list(self.closed.values()), list(self.open.values())
        progressed = Progressed(list(self.figures.values()))
        return itertools.chain([begun], map(Closed, closed), opened, [progressed])

    def lose(self) -> None:
        """Close what is open: nobody works on it any more."""
        for opened in list(self.open.values()):
            _, *tokens = self.figures.get(opened.handle, (opened.handle, *opened.inherited))
            self._close(entry_of(opened, Usage(*tokens), EngineLost.code))
        self.figures.clear()  # of requests whose beginning was damaged


def entry_of(opened: Opened, usage: Usage, finish_reason: str) -> LedgerEntry:
    """What the ledger gets of an attempt that ended."""
    *_, inherited, _ = opened.inherited
    return LedgerEntry(
        opened.id, opened.account, opened.model, usage, finish_reason, opened.attempt, inherited
    )
