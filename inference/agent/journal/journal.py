"""The agent's journal: what every request used, kept until the ledger has it, whatever is killed.

A folder holds one append-only file of records: a request was opened, requests made progress, one
was closed, the ledger acknowledged some. State is changed by records alone, when they are gathered
and when they are read back, so that a journal opened again is where it was.

- **Records are gathered, and written before their effect is seen**, by one `write` to an unbuffered
  descriptor: what a killed process had not written, nobody has heard of. Once `write` returns, the
  bytes are the kernel's: `kill -9` of the process takes nothing back. A loss of power may take the
  last moments, since the disk is waited for (`fsync`) only where a file begins and at `close`:
  waiting in every engine step would cost more than the step.
- **A record is whole or it is not there.** Each has its length and a CRC-32 in front. A write that
  failed half-way is cut off at once; one that died half-way is found at the next open, where its
  first records, as far as they are whole, are kept. What a disk damaged is passed over, and what
  follows counts: the ledger takes no entry twice.
- **Requests that were open when the process died** are closed at the next open, with their last
  progress and the reason `engine_lost`.
- **A file begins with a snapshot**, of the journal's id, its totals and whatever is still live. It
  is written under another name and takes the place of the old file by a rename, so at any moment
  one of the two is there, whole. This happens at each open, and when a file has grown over a limit
  and mostly says what no longer matters.
- **A folder belongs to one process.** The lock is POSIX's, which a forked engine core does not
  share: one that outlives its agent by seconds keeps no new agent out.

Nothing here waits for anything but the page cache, except where a file begins.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import msgspec
import structlog

from inference.errors import EngineLost
from inference.link.wire import Account, LedgerEntry, Totals, Usage
from inference.operations.openai import Counts

log = structlog.get_logger(__name__)

FILE = "journal"
_NEXT_FILE = "journal.next"
_LOCK = "lock"

_LIVE_BYTES = 160
"""About what an open or unacknowledged request takes in a snapshot."""


class JournalFailed(Exception):
    """The journal cannot be read or written."""


# --- records -------------------------------------------------------------------------------------

_Figures = tuple[int, int, int, int, int]
"""A request's handle and its prompt, cached, completion and reasoning tokens so far."""


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """One record. As in `inference.link.wire`: append fields with a default, never change one."""


class _Begun(_Record, tag="begun", frozen=True):
    """First record of a file. `billed` sums up the requests that are acknowledged and gone."""

    id: str
    billed: Totals


class _Opened(_Record, tag="opened", frozen=True):
    """`handle` stands for the id in progress records: a fourth of the bytes."""

    handle: int
    id: str
    account: Account
    model: str


class _Progressed(_Record, tag="progressed", frozen=True):
    figures: list[_Figures]


class _Closed(_Record, tag="closed", frozen=True):
    entry: LedgerEntry


class _Acknowledged(_Record, tag="acknowledged", frozen=True):
    ids: list[str]


_AnyRecord = _Begun | _Opened | _Progressed | _Closed | _Acknowledged

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_AnyRecord).decode

_PREFIX = struct.Struct("<II")
"""In front of each record: its length in bytes and its CRC-32."""
_NOT_ZERO = re.compile(rb"[^\0]")


def _framed(record: _AnyRecord) -> bytes:
    payload = _encode(record)
    return _PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def _whole(data: bytes) -> Iterator[memoryview]:
    """The records, encoded, without what is torn or damaged."""
    view, start = memoryview(data), 0
    while (begin := start + _PREFIX.size) <= len(data):
        length, crc = _PREFIX.unpack_from(data, start)
        payload = view[begin : begin + length]
        # Lost blocks read as zeros, and the CRC of nothing is zero.
        if length and len(payload) == length and zlib.crc32(payload) == crc:
            yield payload
            start = begin + length
        else:  # somewhere behind it the next one begins, of whose length only a byte may show
            shown = _NOT_ZERO.search(data, start)
            start = max(start + 1, shown.start() - 3) if shown else len(data)


class _State:
    """What the records so far add up to."""

    def __init__(self) -> None:
        self.id = ""
        self.billed = Totals()
        self.journaled = Totals()
        self.open: dict[str, _Opened] = {}
        self.figures: dict[int, _Figures] = {}
        self.closed: dict[str, LedgerEntry] = {}

    def apply(self, record: _AnyRecord) -> None:
        match record:
            case _Opened():
                self.open[record.id] = record
            case _Progressed(figures):
                for row in figures:
                    self.figures[row[0]] = row
            case _Closed(entry):
                self._close(entry)
            case _Acknowledged(ids):
                for id in self.closed.keys() & ids:
                    self.billed = self.billed.plus(self.closed.pop(id).usage)
            case begun:
                self.id, self.billed, self.journaled = begun.id, begun.billed, begun.billed

    def _close(self, entry: LedgerEntry) -> None:
        if opened := self.open.pop(entry.id, None):  # not where a snapshot says it
            self.figures.pop(opened.handle, None)
        self.closed[entry.id] = entry
        self.journaled = self.journaled.plus(entry.usage)

    def snapshot(self) -> Iterator[_AnyRecord]:
        """Records that lead to this state."""
        yield _Begun(self.id, self.billed)
        yield from map(_Closed, self.closed.values())
        yield from self.open.values()
        yield _Progressed(list(self.figures.values()))

    def lose(self) -> None:
        """Close what is open: nobody works on it any more."""
        for opened in list(self.open.values()):
            _, *tokens = self.figures.get(opened.handle, (0, 0, 0, 0, 0))
            self._close(_entry(opened, Usage(*tokens), EngineLost.code))
        self.figures.clear()  # of requests whose beginning was damaged


def _entry(opened: _Opened, usage: Usage, finish_reason: str) -> LedgerEntry:
    return LedgerEntry(opened.id, opened.account, opened.model, usage, finish_reason)


# --- the file ------------------------------------------------------------------------------------


class _File:
    """A file that grows by whole records; `size` in bytes. Its methods raise OSError."""

    def __init__(self, path: Path) -> None:
        """A new one; an old one of that name is emptied."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._fd = os.open(path, flags, 0o600)
        self.size = 0
        self._torn = False

    def append(self, data: bytes) -> None:
        """All of it, or nothing."""
        self._mend()
        try:
            if os.write(self._fd, data) < len(data):
                raise OSError(errno.ENOSPC, "only a part was written")
        except OSError:
            self._torn = True
            with suppress(OSError):
                self._mend()
            raise
        self.size += len(data)

    def _mend(self) -> None:
        if self._torn:
            os.ftruncate(self._fd, self.size)
            self._torn = False

    def sync(self) -> None:
        """Wait until it is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        # A later write must fail, not go to whoever got the number.
        fd, self._fd = self._fd, -1
        os.close(fd)


def _begin(folder: Path, state: _State) -> _File:
    """Put a new file with a snapshot in the place of the old one, if there is one.

    Raises:
        OSError: the old one stays, as it was.
    """
    path = folder / _NEXT_FILE
    file = _File(path)
    try:
        file.append(b"".join(map(_framed, state.snapshot())))
        file.sync()
        os.replace(path, folder / FILE)
    except OSError:
        file.close()
        path.unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    return file


def _sync_folder(folder: Path) -> None:
    """Make the rename last. If that fails, only a loss of power could still undo it."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        log.warning("journal_folder_not_synced", folder=str(folder), error=str(error))


def _read(path: Path) -> _State:
    """What the file says, as far as it is whole; a state with a new id if there is none.

    Raises:
        JournalFailed: its first record is damaged, which no crash does, or another version of
            Lorikeet wrote it: it is not for us to throw away.
    """
    state, data, kept = _State(), _bytes_of(path), 0
    for payload in _whole(data):
        kept += _PREFIX.size + len(payload)
        try:
            state.apply(_decode(payload))
        except msgspec.MsgspecError as error:
            raise JournalFailed(f"{path} is of another version of Lorikeet: {error}") from None
    if data and not state.id:
        raise JournalFailed(f"{path} is damaged or no journal; moved away, a new one is made")
    if kept < len(data):
        log.warning("journal_cut", path=str(path), kept_bytes=kept, cut_bytes=len(data) - kept)
    state.id = state.id or uuid.uuid4().hex
    return state


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _lock(folder: Path) -> int:
    """The descriptor that holds the folder for this process.

    Raises:
        JournalFailed: another process has it.
    """
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise JournalFailed(
            f"the journal in {folder} is in use by another agent; each needs a folder of its own"
        ) from None
    return fd


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalFailed(f"cannot {what}: {error}") from error


# --- the journal ---------------------------------------------------------------------------------


class Journal:
    """What the requests of one engine used. Not for use by several threads.

    A request is `opened`, then `progressed` any number of times, then `closed`; its entry counts
    as backlog until it is `acknowledged`. An entry of the backlog takes about 700 bytes of memory;
    to bound it, open no more.

    What these four say is gathered; it is journaled once `write` returns.
    """

    def __init__(
        self, folder: Path, state: _State, file: _File, *, lock: int, rotate_bytes: int
    ) -> None:
        """Use `open`."""
        self._folder, self._state, self._file, self._lock = folder, state, file, lock
        self._rotate_bytes = rotate_bytes
        self._rotate_at = max(rotate_bytes, 2 * file.size)
        self._handles = itertools.count()
        self._gathered: list[_AnyRecord] = []

    @classmethod
    def open(cls, folder: Path, *, rotate_bytes: int = 32 << 20) -> Self:
        """The journal in the folder, or a new one; the folder is made if need be.

        `rotate_bytes` is how large a file may grow before a new one is begun.

        Raises:
            JournalFailed: another process uses it, it is damaged, or the disk fails or is full.
        """
        with _failing(f"open the journal in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            lock = _lock(folder)
            try:
                state = _read(folder / FILE)
                if state.open:
                    log.warning("requests_lost", journal=state.id, requests=len(state.open))
                state.lose()
                file = _begin(folder, state)
            except BaseException:
                os.close(lock)
                raise
        return cls(folder, state, file, lock=lock, rotate_bytes=rotate_bytes)

    @property
    def id(self) -> str:
        """Names the journal for ever; random."""
        return self._state.id

    @property
    def journaled(self) -> Totals:
        """All requests that were ever closed."""
        return self._state.journaled

    @property
    def unbilled(self) -> Totals:
        """Those that were not acknowledged yet."""
        return self._state.journaled.minus(self._state.billed)

    @property
    def backlog(self) -> int:
        """Requests that were closed and not acknowledged."""
        return len(self._state.closed)

    @property
    def open_requests(self) -> int:
        """Requests that were opened and not closed."""
        return len(self._state.open)

    def unacknowledged(self) -> list[LedgerEntry]:
        """The backlog, oldest first; after `open`, what was open when the process died comes last.

        Of these, token counts are those of the last progress, and times are not known.
        """
        return list(self._state.closed.values())

    def opened(self, id: str, account: Account, model: str) -> None:
        """A request was accepted; `model` as the client wrote it.

        Raises:
            ValueError: a request of this id is open or unacknowledged.
        """
        if id in self._state.open or id in self._state.closed:
            raise ValueError(f"request {id} is in the journal already")
        self._gather(_Opened(next(self._handles), id, account, model))

    def progressed(self, figures: Iterable[tuple[str, Counts]]) -> None:
        """What requests used up to now, by id; ids that aren't open are ignored."""
        known = self._state.open
        rows = [
            (
                opened.handle,
                counts.prompt_tokens,
                counts.cached_tokens,
                counts.completion_tokens,
                counts.reasoning_tokens,
            )
            for id, counts in figures
            if (opened := known.get(id)) is not None
        ]
        if rows:
            self._gather(_Progressed(rows))

    def closed(self, id: str, usage: Usage, finish_reason: str) -> LedgerEntry | None:
        """The request ended with these final figures; what the ledger gets of it.

        None if it isn't open.
        """
        if (opened := self._state.open.get(id)) is None:
            return None
        entry = _entry(opened, usage, finish_reason)
        self._gather(_Closed(entry))
        return entry

    def acknowledged(self, ids: Sequence[str]) -> None:
        """These are in the ledger for good; ids that aren't in the backlog are ignored."""
        known = [id for id in dict.fromkeys(ids) if id in self._state.closed]
        if known:
            self._gather(_Acknowledged(known))

    def write(self) -> None:
        """Journal what was gathered, in one write. Before anybody sees what follows from it.

        Raises:
            JournalFailed: the file can't be written (no room on the disk); nothing of it was, and
                all of it is by the next call that does not fail.
        """
        if not self._gathered:
            return
        try:
            self._file.append(b"".join(map(_framed, self._gathered)))
        except OSError as error:
            raise JournalFailed(f"cannot write {self._folder / FILE}: {error}") from error
        self._gathered.clear()
        if self._file.size >= self._rotate_at and self._is_mostly_dead():
            self._rotate()

    def close(self) -> None:
        """Bring everything to the disk and free the folder; nothing may follow.

        Raises:
            JournalFailed: the disk failed; the folder is free all the same.
        """
        try:
            self.write()
            with _failing(f"sync the journal in {self._folder}"):
                self._file.sync()
        finally:
            self._file.close()
            os.close(self._lock)

    def _gather(self, record: _AnyRecord) -> None:
        self._state.apply(record)
        self._gathered.append(record)

    def _is_mostly_dead(self) -> bool:
        return 2 * _LIVE_BYTES * (self.open_requests + self.backlog) <= self._file.size

    def _rotate(self) -> None:
        """Go on in a new file; where that fails, in the old one, and try again in a while."""
        try:
            file = _begin(self._folder, self._state)
        except OSError as error:
            log.warning("journal_not_rotated", folder=str(self._folder), error=str(error))
            self._rotate_at = self._file.size + self._rotate_bytes
            return
        self._file.close()
        self._file = file
        self._rotate_at = max(self._rotate_bytes, 2 * file.size)
