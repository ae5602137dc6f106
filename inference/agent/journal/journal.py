"""The agent's journal: what every request used, kept until it is in the ledger, across crashes.

A folder holds one append-only file of records: an attempt of a request was opened, attempts made
progress, one was closed, the ledger acknowledged some. Only records change the state, both when
they are gathered and when they are read back, so a reopened journal is exactly where it was.

- **Records are gathered, and written before their effect is visible**, by one `write` to an
  unbuffered descriptor: what a killed process had not written was never visible outside it. Once
  `write` returns, the bytes are in the kernel and survive `kill -9`. A power loss may take what was
  written since the file began, or since the last `close`: only these wait for the disk (`fsync`),
  because waiting in every engine step would cost more than the step.
- **A record is complete or absent.** Each is preceded by its length and a CRC-32. A write that
  failed half-way is truncated at once; one whose process died half-way is found at the next open,
  which keeps its leading intact records. Regions damaged by the disk are skipped, and records after
  them still count: the ledger takes no entry twice.
- **Attempts that were open when the process died** are closed at the next open, with their last
  progress and the reason `engine_lost`.
- **A file begins with a snapshot** of the journal's id, its totals and everything still live. It
  is written under another name and renamed over the old file, so at any moment one of the two is
  there, complete. This happens at each open, and when a file has grown over a limit and most of it
  is obsolete.
- **Nothing waits for the disk while the journal is in use.** The next file is written and synced by
  a thread, one at a time, from a snapshot that later records don't change. The file in use grows
  meanwhile; what it gains is appended to the next one just before the rename. If the next file
  can't be made, the one in use stays intact, and another is tried later. A `write` that fails, by
  contrast, raises, and its caller must send nothing.
- **A folder belongs to one process.** The lock is a POSIX lock, which a forked engine core does not
  inherit: one that outlives its agent by seconds keeps no new agent out.
- **A file names the version of its records.**
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog

from inference.agent.journal.files import (
    FILE,
    JournalFailed,
    JournalFile,
    begin,
    discard,
    failing,
    lock_folder,
    next_file,
    read,
    retire,
    take_over,
)
from inference.agent.journal.records import (
    Acknowledged,
    AnyRecord,
    Closed,
    Figures,
    JournalState,
    Opened,
    Progressed,
    entry_of,
    framed,
)
from inference.link.accounts import Account, LedgerEntry, Totals, Usage
from inference.link.session import AttemptKey
from inference.operations.openai import UsageCounts

log = structlog.get_logger(__name__)

NOTHING = Usage()

_LIVE_BYTES = 160
"""Approximate size of an open or unacknowledged attempt in a snapshot."""


class _Next:
    """The next file while a thread writes it, and what the one in use gains meanwhile."""

    def __init__(self, made: Future[JournalFile], most_bytes: int) -> None:
        """If more than `most_bytes` are gained, the disk is too slow and the file is given up."""
        self.made, self._most_bytes = made, most_bytes
        self._gained: bytearray | None = bytearray()

    def gain(self, data: bytes) -> None:
        """`data` was appended to the file in use."""
        if self._gained is not None:
            self._gained += data
            if len(self._gained) > self._most_bytes:
                self._gained = None

    def take_over(self, folder: Path) -> JournalFile:
        """Replace the file in use by the next one, which is complete.

        Raises:
            OSError: the file in use stays, and the next one is deleted.
        """
        file = self.made.result()
        if self._gained is None:
            discard(folder, file)
            raise TimeoutError("the disk was too slow")
        take_over(folder, file, bytes(self._gained))
        return file


class Journal:
    """What the requests of one engine used. Not thread-safe.

    An attempt of a request is `opened`, then `progressed` any number of times, then `closed`; its
    entry counts as backlog until it is `acknowledged`. An entry of the backlog takes about 700
    bytes of memory; callers bound it by opening no more.

    These four methods only gather records; they are journaled once `write` returns.
    """

    def __init__(
        self,
        folder: Path,
        state: JournalState,
        file: JournalFile,
        *,
        lock: int,
        executor: Executor | None,
        rotate_bytes: int,
    ) -> None:
        """Use `open`."""
        self._folder, self._state, self._file, self._lock = folder, state, file, lock
        self._own_thread = ThreadPoolExecutor(1, "journal")
        self._submit = (self._own_thread if executor is None else executor).submit
        self._rotate_bytes = rotate_bytes
        self._rotate_at = max(rotate_bytes, 2 * file.size)
        self._next: _Next | None = None
        self._handles = itertools.count()
        self._gathered: list[AnyRecord] = []

    @classmethod
    def open(
        cls, folder: Path, *, rotate_bytes: int = 32 << 20, executor: Executor | None = None
    ) -> Self:
        """Open the folder's journal, or create one; the folder is created if need be.

        `rotate_bytes` is how large a file may grow before a new one is begun; `executor` waits for
        the disk then (by default a thread of the journal's own).

        Raises:
            JournalFailed: another process uses it, it is damaged, or the disk fails or is full.
        """
        with failing(f"open the journal in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            lock = lock_folder(folder)
            try:
                state = read(folder / FILE)
                if state.open:
                    log.warning("requests_lost", journal=state.id, requests=len(state.open))
                state.lose()
                file = begin(folder, state)
            except BaseException:
                os.close(lock)
                raise
        return cls(folder, state, file, lock=lock, executor=executor, rotate_bytes=rotate_bytes)

    @property
    def id(self) -> str:
        """Permanent and random."""
        return self._state.id

    @property
    def journaled(self) -> Totals:
        """Totals of all attempts that were ever closed."""
        return self._state.journaled

    @property
    def unbilled(self) -> Totals:
        """Totals of the attempts that were closed and not acknowledged."""
        return self._state.journaled.minus(self._state.billed)

    @property
    def backlog(self) -> int:
        """Attempts that were closed and not acknowledged."""
        return len(self._state.closed)

    @property
    def open_requests(self) -> int:
        """Attempts that were opened and not closed."""
        return len(self._state.open)

    def unacknowledged(self) -> list[LedgerEntry]:
        """The backlog, oldest first; attempts that were open when the last process died come last.

        The latter have the token counts of their last progress, and no times.
        """
        return list(self._state.closed.values())

    def opened(
        self, attempt: AttemptKey, account: Account, model: str, inherited: UsageCounts = NOTHING
    ) -> None:
        """An attempt was accepted; `model` as the client wrote it. `inherited` is what the lower
        attempts used that it continues, and is part of its figures from now on.

        Raises:
            ValueError: this attempt is open or unacknowledged.
        """
        id, number = attempt
        if attempt in self._state.open or attempt in self._state.closed:
            raise ValueError(f"attempt {number} of request {id} is already in the journal")
        handle, figures = next(self._handles), _figures_of(inherited)
        self._gather(Opened(handle, id, account, model, number, figures))

    def progressed(self, figures: Iterable[tuple[AttemptKey, UsageCounts]]) -> None:
        """What attempts used so far; those that aren't open are ignored."""
        known = self._state.open
        moved = [
            (opened.handle, counts)
            for attempt, counts in figures
            if (opened := known.get(attempt)) is not None
        ]
        if moved:
            rows = [(handle, *_figures_of(counts)) for handle, counts in moved]
            estimated = [handle for handle, counts in moved if counts.is_estimated]
            self._gather(Progressed(rows, estimated))

    def closed(self, attempt: AttemptKey, usage: Usage, finish_reason: str) -> LedgerEntry | None:
        """The attempt ended with these final figures. Returns its ledger entry; None if it isn't
        open.
        """
        if (opened := self._state.open.get(attempt)) is None:
            return None
        entry = entry_of(opened, usage, finish_reason)
        self._gather(Closed(entry))
        return entry

    def acknowledged(self, attempts: Iterable[AttemptKey]) -> None:
        """These are durably in the ledger; those that aren't in the backlog are ignored."""
        known = [one for one in dict.fromkeys(attempts) if one in self._state.closed]
        if known:
            self._gather(Acknowledged(known))

    def write(self) -> None:
        """Journal what was gathered, in one write; call before its effects become visible.

        Raises:
            JournalFailed: the file can't be written (disk full). Nothing was written; the next
                call that succeeds writes all of it.
        """
        self._append()
        if self._next is None and self._file.size >= self._rotate_at and self._is_mostly_dead():
            made = self._submit(next_file, self._folder, self._state.snapshot())
            self._next = _Next(made, self._rotate_bytes)
        if self._next is not None and self._next.made.done():
            self._rotate(self._next)
            self._next = None

    def close(self) -> None:
        """Sync everything to disk and release the folder; nothing may be called afterwards.

        Raises:
            JournalFailed: the disk failed; the folder is released all the same.
        """
        try:
            self._append()
            with failing(f"sync the journal in {self._folder}"):
                self._file.sync()
        finally:
            if self._next is not None:
                with suppress(OSError):
                    discard(self._folder, self._next.made.result())
            self._own_thread.shutdown()
            self._file.close()
            os.close(self._lock)

    def _gather(self, record: AnyRecord) -> None:
        self._state.apply(record)
        self._gathered.append(record)

    def _append(self) -> None:
        if not self._gathered:
            return
        data = b"".join(map(framed, self._gathered))
        try:
            self._file.append(data)
        except OSError as error:
            raise JournalFailed(f"cannot write {self._folder / FILE}: {error}") from error
        self._gathered.clear()
        if self._next is not None:
            self._next.gain(data)

    def _is_mostly_dead(self) -> bool:
        return 2 * _LIVE_BYTES * (self.open_requests + self.backlog) <= self._file.size

    def _rotate(self, next: _Next) -> None:
        """Switch to the next file; if it could not be made, keep this one and try again later."""
        try:
            file = next.take_over(self._folder)
        except OSError as error:
            log.warning("journal_not_rotated", folder=str(self._folder), error=str(error))
            self._rotate_at = self._file.size + self._rotate_bytes
            return
        self._submit(retire, self._folder, self._file)
        self._file = file
        self._rotate_at = max(self._rotate_bytes, 2 * file.size)


def _figures_of(counts: UsageCounts) -> Figures:
    return (
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
        counts.reasoning_tokens,
    )
