"""The agent's journal: what every request used, kept until the ledger has it, whatever is killed.

A folder holds one append-only file of records: an attempt of a request was opened, attempts made
progress, one was closed, the ledger acknowledged some. State is changed by records alone, when they
are gathered and when they are read back, so that a journal opened again is where it was.

- **Records are gathered, and written before their effect is seen**, by one `write` to an unbuffered
  descriptor: what a killed process had not written, nobody has heard of. Once `write` returns, the
  bytes are the kernel's: `kill -9` of the process takes nothing back. A loss of power may take what
  was written since the file began, or since the last `close`: the disk is waited for (`fsync`) only
  there, because waiting in every engine step would cost more than the step.
- **A record is whole or it is not there.** Each has its length and a CRC-32 in front. A write that
  failed half-way is cut off at once; one that died half-way is found at the next open, where its
  first records, as far as they are whole, are kept. What a disk damaged is passed over, and what
  follows counts: the ledger takes no entry twice.
- **Attempts that were open when the process died** are closed at the next open, with their last
  progress and the reason `engine_lost`.
- **A file begins with a snapshot**, of the journal's id, its totals and whatever is still live. It
  is written under another name and takes the place of the old file by a rename, so at any moment
  one of the two is there, whole. This happens at each open, and when a file has grown over a limit
  and mostly says what no longer matters.
- **Nothing waits for the disk while the journal is in use.** The next file is written and synced by
  a thread, one at a time, from a snapshot that no later record changes. The file in use grows on
  meanwhile; what it gains is added to the next one just before the rename. If the next file can't
  be made, the one in use stays, whole, and another is tried later. A `write` that fails is another
  matter: it raises, and whoever called must send nothing.
- **A folder belongs to one process.** The lock is POSIX's, which a forked engine core does not
  share: one that outlives its agent by seconds keeps no new agent out.
- **A file says which version of records it has.** Version 1 knew no attempts: all were first ones.
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
    File,
    JournalFailed,
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
    Opened,
    Progressed,
    State,
    entry_of,
    framed,
)
from inference.link.session import Attempt
from inference.link.wire import Account, LedgerEntry, Totals, Usage
from inference.operations.openai import Counts

log = structlog.get_logger(__name__)

NOTHING = Usage()

_LIVE_BYTES = 160
"""About what an open or unacknowledged attempt takes in a snapshot."""


class _Next:
    """The next file while a thread makes it, and what the one in use gains meanwhile."""

    def __init__(self, made: Future[File], most_bytes: int) -> None:
        """Where more than `most_bytes` are gained, the disk is too slow: there is no next file."""
        self.made, self._most_bytes = made, most_bytes
        self._gained: bytearray | None = bytearray()

    def gain(self, data: bytes) -> None:
        """The file in use has this now."""
        if self._gained is not None:
            self._gained += data
            if len(self._gained) > self._most_bytes:
                self._gained = None

    def take_over(self, folder: Path) -> File:
        """Put the file, which is made, in the place of the one in use.

        Raises:
            OSError: that one stays, and the next one is gone.
        """
        file = self.made.result()
        if self._gained is None:
            discard(folder, file)
            raise TimeoutError("the disk was too slow")
        take_over(folder, file, bytes(self._gained))
        return file


class Journal:
    """What the requests of one engine used. Not for use by several threads.

    An attempt of a request is `opened`, then `progressed` any number of times, then `closed`; its
    entry counts as backlog until it is `acknowledged`. An entry of the backlog takes about 700
    bytes of memory; to bound it, open no more.

    What these four say is gathered; it is journaled once `write` returns.
    """

    def __init__(
        self, folder: Path, state: State, file: File, *, lock: int, executor: Executor | None,
        rotate_bytes: int,
    ) -> None:  # fmt: skip
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
        """The journal in the folder, or a new one; the folder is made if need be.

        `rotate_bytes` is how large a file may grow before a new one is begun; `executor` is what
        waits for the disk then, a thread of the journal's own if not given.

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
        """Names the journal for ever; random."""
        return self._state.id

    @property
    def journaled(self) -> Totals:
        """All attempts that were ever closed."""
        return self._state.journaled

    @property
    def unbilled(self) -> Totals:
        """Those that were not acknowledged yet."""
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
        """The backlog, oldest first; after `open`, what was open when the process died comes last.

        Of these, token counts are those of the last progress, and times are not known.
        """
        return list(self._state.closed.values())

    def opened(
        self, attempt: Attempt, account: Account, model: str, inherited: Counts = NOTHING
    ) -> None:
        """An attempt was accepted; `model` as the client wrote it. It goes on from what lower
        attempts used (`inherited`), which is part of its figures from now on.

        Raises:
            ValueError: this attempt is open or unacknowledged.
        """
        id, number = attempt
        if attempt in self._state.open or attempt in self._state.closed:
            raise ValueError(f"attempt {number} of request {id} is in the journal already")
        handle, figures = next(self._handles), _figures_of(inherited)
        self._gather(Opened(handle, id, account, model, number, figures))

    def progressed(self, figures: Iterable[tuple[Attempt, Counts]]) -> None:
        """What attempts used up to now; those that aren't open are ignored."""
        known = self._state.open
        rows = [
            (opened.handle, *_figures_of(counts))
            for attempt, counts in figures
            if (opened := known.get(attempt)) is not None
        ]
        if rows:
            self._gather(Progressed(rows))

    def closed(self, attempt: Attempt, usage: Usage, finish_reason: str) -> LedgerEntry | None:
        """The attempt ended with these final figures; what the ledger gets of it.

        None if it isn't open.
        """
        if (opened := self._state.open.get(attempt)) is None:
            return None
        entry = entry_of(opened, usage, finish_reason)
        self._gather(Closed(entry))
        return entry

    def acknowledged(self, attempts: Iterable[Attempt]) -> None:
        """These are in the ledger for good; those that aren't in the backlog are ignored."""
        known = [one for one in dict.fromkeys(attempts) if one in self._state.closed]
        if known:
            self._gather(Acknowledged.of(known))

    def write(self) -> None:
        """Journal what was gathered, in one write. Before anybody sees what follows from it.

        Raises:
            JournalFailed: the file can't be written (no room on the disk); nothing of it was, and
                all of it is by the next call that does not fail.
        """
        self._append()
        if self._next is None and self._file.size >= self._rotate_at and self._is_mostly_dead():
            made = self._submit(next_file, self._folder, self._state.snapshot())
            self._next = _Next(made, self._rotate_bytes)
        if self._next is not None and self._next.made.done():
            self._rotate(self._next)
            self._next = None

    def close(self) -> None:
        """Bring everything to the disk and free the folder; nothing may follow.

        Raises:
            JournalFailed: the disk failed; the folder is free all the same.
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
        """Go on in the next file; where there is none, in this one, and try again in a while."""
        try:
            file = next.take_over(self._folder)
        except OSError as error:
            log.warning("journal_not_rotated", folder=str(self._folder), error=str(error))
            self._rotate_at = self._file.size + self._rotate_bytes
            return
        self._submit(retire, self._folder, self._file)
        self._file = file
        self._rotate_at = max(self._rotate_bytes, 2 * file.size)


def _figures_of(counts: Counts) -> Figures:
    return (
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
        counts.reasoning_tokens,
    )
