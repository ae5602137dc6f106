"""The journal against a plain model: cut anywhere, killed anywhere, on a full disk."""

from __future__ import annotations

import copy
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from structlog.testing import capture_logs

from inference.agent.engine import Meter
from inference.agent.journal import FILE, Journal, JournalFailed
from inference.wire import Account, LedgerEntry, Totals, Usage

TINY = 700
"""Bytes at which a file of the tests is full: after a few requests."""

RAM = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where waiting for a disk costs nothing; these tests do it thousands of times."""

Op = tuple[Any, ...]
"""("open", id), ("progress", tokens, ids), ("close", id, tokens) or ("acknowledge", ids)."""
View = tuple[list[LedgerEntry], Totals, Totals]


def used(tokens: int, *, total_s: float = 0.0) -> Usage:
    return Usage(3 * tokens, tokens, tokens, tokens // 2, total_s=total_s)


def account(id: str) -> Account:
    return Account(1, len(id), 1_760_000_000.5, "base", None, 7)


def entry(id: str, usage: Usage, finish_reason: str) -> LedgerEntry:
    return LedgerEntry(id, account(id), f"acme/{id}", usage, finish_reason)


def totals(usages: Iterable[Usage]) -> Totals:
    counted = [(1, u.prompt_tokens, u.cached_tokens, u.completion_tokens) for u in usages]
    return Totals(*map(sum, zip(*counted, strict=True))) if counted else Totals()


def act(journal: Journal, op: Op) -> None:
    match op:
        case ("open", id):
            journal.opened(id, account(id), f"acme/{id}")
        case ("progress", tokens, ids):
            meter = Meter(3 * tokens, tokens, tokens, tokens // 2)
            journal.progressed([(id, meter) for id in ids])
        case ("close", id, tokens):
            journal.closed(id, used(tokens, total_s=1.5), "stop")
        case ("acknowledge", ids):
            journal.acknowledged(ids)


class Model:
    """What a journal must say."""

    def __init__(self) -> None:
        self.open: dict[str, Usage] = {}
        self.closed: dict[str, LedgerEntry] = {}
        self.ever: list[Usage] = []

    def apply(self, op: Op) -> None:
        match op:
            case ("open", id):
                self.open[id] = Usage()
            case ("progress", tokens, ids):
                self.open.update({id: used(tokens) for id in ids if id in self.open})
            case ("close", id, tokens) if id in self.open:
                self._close(entry(id, used(tokens, total_s=1.5), "stop"))
            case ("acknowledge", ids):
                for id in ids:
                    self.closed.pop(id, None)

    def _close(self, ended: LedgerEntry) -> None:
        del self.open[ended.id]
        self.closed[ended.id] = ended
        self.ever.append(ended.usage)

    def crashed(self) -> Model:
        """As it must be after the process died and the journal was opened again."""
        after = copy.deepcopy(self)
        for id, usage in self.open.items():
            after._close(entry(id, usage, "engine_lost"))
        return after

    def view(self) -> View:
        entries = list(self.closed.values())
        return entries, totals(self.ever), totals(one.usage for one in entries)


def view(journal: Journal) -> View:
    assert journal.backlog == len(journal.unacknowledged())
    return journal.unacknowledged(), journal.journaled, journal.unbilled


def traffic() -> Iterator[Op]:
    """Without end: always about three requests open, one to four unacknowledged."""
    for n in itertools.count():
        yield "open", f"r{n}"
        yield "progress", n % 1000, [f"r{m}" for m in range(max(0, n - 3), n + 1)]
        yield "close", f"r{n - 3}", n % 1000 + 1
        if n % 3 == 0:
            yield "acknowledge", [f"r{m}" for m in range(n - 9, n - 3)]


def model_after(ops: int) -> Model:
    model = Model()
    for op in itertools.islice(traffic(), ops):
        model.apply(op)
    return model


def copied(folder: Path, target: Path) -> Path:
    """The folder as a crash at this moment would leave it.

    Without the lock: it would be freed if this process opened and closed it.
    """
    return Path(shutil.copytree(folder, target, ignore=shutil.ignore_patterns("lock")))


def reopened(folder: Path) -> View:
    """What the journal says when it is opened, and when it is opened once more."""
    views = []
    for _ in range(2):
        with closing(Journal.open(folder)) as journal:
            assert journal.open_requests == 0
            assert sorted(os.listdir(folder)) == [FILE, "lock"]
            views.append(view(journal))
    assert views[0] == views[1]
    return views[0]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=RAM) as root:
        yield Path(root) / "journal"


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    with closing(Journal.open(folder, rotate_bytes=TINY)) as opened:
        yield opened


# --- a request's life ----------------------------------------------------------------------------


def test_a_request_is_opened_progresses_is_closed_and_is_acknowledged(journal: Journal) -> None:
    journal.opened("a", account("a"), "acme/a")
    journal.progressed([("a", Meter(10, 4, 1, 0))])
    assert (journal.open_requests, journal.backlog) == (1, 0)
    assert journal.journaled == Totals()
    usage = Usage(10, 4, 7, 2, 0.1, 0.2, 0.3, 0.4)
    ended = journal.closed("a", usage, "length")
    assert ended == entry("a", usage, "length")
    assert (journal.open_requests, journal.unacknowledged()) == (0, [ended])
    assert journal.journaled == journal.unbilled == Totals(1, 10, 4, 7)
    journal.acknowledged(["a"])
    assert (journal.backlog, journal.unacknowledged()) == (0, [])
    assert (journal.journaled, journal.unbilled) == (Totals(1, 10, 4, 7), Totals())


def test_a_request_that_cost_nothing_is_an_entry_too(journal: Journal) -> None:
    journal.opened("a", account("a"), "acme/a")
    assert journal.closed("a", Usage(), "cancelled") == entry("a", Usage(), "cancelled")
    assert journal.journaled == Totals(1)


def test_ids_that_are_not_known_change_nothing(journal: Journal, folder: Path) -> None:
    journal.opened("a", account("a"), "acme/a")
    journal.closed("a", used(1), "stop")
    before = (folder / FILE).read_bytes()
    assert journal.closed("a", used(2), "stop") is None
    assert journal.closed("b", used(2), "stop") is None
    journal.progressed([("a", Meter(1)), ("b", Meter(1))])
    journal.progressed([])
    journal.acknowledged(["b"])
    journal.acknowledged([])
    assert (folder / FILE).read_bytes() == before
    journal.acknowledged(["a", "b", "a"])
    assert journal.unbilled == Totals()


def test_an_id_is_not_taken_twice(journal: Journal) -> None:
    journal.opened("a", account("a"), "acme/a")
    with pytest.raises(ValueError, match="request a is in the journal"):
        journal.opened("a", account("a"), "acme/a")
    journal.closed("a", used(1), "stop")
    with pytest.raises(ValueError, match="request a is in the journal"):
        journal.opened("a", account("a"), "acme/a")


def test_progress_of_a_step_is_one_write(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    for id in "abc":
        journal.opened(id, account(id), f"acme/{id}")
    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or write(fd, data))
    journal.progressed((id, Meter(1, 0, 1)) for id in "abc")
    assert len(writes) == 1


# --- opened again --------------------------------------------------------------------------------


def test_a_journal_keeps_its_id_totals_and_backlog(folder: Path) -> None:
    with closing(Journal.open(folder)) as journal:
        id = journal.id
        for op in itertools.islice(traffic(), 100):
            act(journal, op)
    with closing(Journal.open(folder)) as journal:
        assert journal.id == id
        assert view(journal) == model_after(100).crashed().view()
    with closing(Journal.open(folder.with_name("other"))) as other:
        assert other.id != id
        assert view(other) == ([], Totals(), Totals())


def test_requests_that_were_open_are_closed_with_their_last_progress(folder: Path) -> None:
    with closing(Journal.open(folder)) as journal:
        for id in "abc":
            journal.opened(id, account(id), f"acme/{id}")
        journal.progressed([("a", Meter(10, 4, 1)), ("b", Meter(5, 0, 1))])
        journal.progressed([("a", Meter(10, 4, 2, 1))])
        journal.closed("b", used(9), "stop")
    lost = [
        entry("b", used(9), "stop"),
        entry("a", Usage(10, 4, 2, 1), "engine_lost"),
        entry("c", Usage(), "engine_lost"),
    ]
    with capture_logs() as lines, closing(Journal.open(folder)) as journal:
        assert journal.unacknowledged() == lost
        assert journal.journaled == journal.unbilled == totals(one.usage for one in lost)
    assert [(line["event"], line["requests"]) for line in lines] == [("requests_lost", 2)]
    with capture_logs() as lines, closing(Journal.open(folder)) as journal:
        assert journal.unacknowledged() == lost
    assert not lines, "they are lost once"


IDS = st.sampled_from("abcdef")
OPS = st.one_of(
    st.tuples(st.just("open"), IDS),
    st.tuples(st.just("progress"), st.integers(0, 2**40), st.lists(IDS, unique=True)),
    st.tuples(st.just("close"), IDS, st.integers(0, 2**40)),
    st.tuples(st.just("acknowledge"), st.lists(IDS)),
)


def fits(model: Model, op: Op) -> bool:
    return op[0] != "open" or op[1] not in model.open | model.closed


class Written:
    """A journal with what it must say wherever its present file is cut."""

    def __init__(self, folder: Path, ops: list[Op]) -> None:
        self.path = folder / FILE
        with closing(Journal.open(folder, rotate_bytes=TINY)) as journal:
            model = Model()
            self.marks = [(self.path.stat(), model)]
            for op in ops:
                if fits(model, op):
                    act(journal, op)
                    model = copy.deepcopy(model)
                    model.apply(op)
                    self._mark(model)

    def _mark(self, model: Model) -> None:
        now = self.path.stat()
        if now.st_ino != self.marks[-1][0].st_ino:
            self.marks = []  # a new file: it begins with a snapshot of everything
        self.marks.append((now, model))

    @property
    def snapshot_bytes(self) -> int:
        return self.marks[0][0].st_size

    @property
    def bytes(self) -> int:
        return self.marks[-1][0].st_size

    def up_to(self, offset: int) -> tuple[int, Model]:
        """Where the last whole record before the offset ends, and what must be known then."""
        stat, model = [mark for mark in self.marks if mark[0].st_size <= offset][-1]
        return stat.st_size, model


HISTORIES = st.builds(
    lambda before, ops: [*itertools.islice(traffic(), before), *ops],
    st.integers(0, 100),  # with the first 35 or so a file is full
    st.lists(OPS, max_size=40),
)


@settings(max_examples=150, deadline=None)
@given(ops=HISTORIES, data=st.data())
def test_a_cut_anywhere_loses_only_the_record_that_it_goes_through(
    ops: list[Op], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory(dir=RAM) as folder:
        written = Written(Path(folder), ops)
        offset = data.draw(st.integers(written.snapshot_bytes, written.bytes))
        os.truncate(written.path, offset)
        end, model = written.up_to(offset)
        with capture_logs() as lines:
            assert reopened(Path(folder)) == model.crashed().view()
        cuts = [line["cut_bytes"] for line in lines if line["event"] == "journal_cut"]
        assert cuts == ([offset - end] if offset > end else [])


@settings(max_examples=150, deadline=None)
@given(ops=HISTORIES, flip=st.integers(1, 255), data=st.data())
def test_a_damaged_record_and_what_follows_are_cut_off(
    ops: list[Op], flip: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory(dir=RAM) as folder:
        written = Written(Path(folder), ops)
        content = bytearray(written.path.read_bytes())
        offset = data.draw(st.integers(written.snapshot_bytes, len(content)))
        content += b"\0"  # so that there is always a byte to damage
        content[offset] ^= flip
        written.path.write_bytes(content)
        assert reopened(Path(folder)) == written.up_to(offset)[1].crashed().view()


def test_zeros_at_the_end_are_no_records(folder: Path) -> None:
    """What a file system leaves of blocks that were never written."""
    written = Written(folder, list(itertools.islice(traffic(), 10)))
    with written.path.open("ab") as file:
        file.write(bytes(4096))
    assert reopened(folder) == model_after(10).crashed().view()


def test_a_cut_in_a_snapshot_keeps_the_entries_before_it(folder: Path) -> None:
    Written(folder, list(itertools.islice(traffic(), 60)))
    entries, *_ = reopened(folder)  # now a file that is a snapshot and nothing else
    content = (folder / FILE).read_bytes()
    billed = len(model_after(60).crashed().ever) - len(entries)
    counts = set()
    for offset in range(8 + content[0], len(content), 5):
        (folder / FILE).write_bytes(content[:offset])
        kept, journaled, unbilled = reopened(folder)
        assert kept == entries[: len(kept)]
        assert unbilled == totals(one.usage for one in kept)
        assert journaled.requests == billed + len(kept)
        counts.add(len(kept))
    assert counts == set(range(len(entries) + 1))


class Restarts(RuleBasedStateMachine):
    """Closed or crashed at any time, a journal says what it must."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory(dir=RAM)
        self.lives = itertools.count()
        self.model = Model()
        self.folder = Path(self.root.name) / "first"
        self.journal = Journal.open(self.folder, rotate_bytes=TINY)
        self.id = self.journal.id

    @rule(op=OPS)
    def do(self, op: Op) -> None:
        if not fits(self.model, op):
            return
        act(self.journal, op)
        self.model.apply(op)

    @rule(steps=st.integers(1, 60))
    def generate(self, steps: int) -> None:
        """What fills files."""
        for tokens in range(steps):
            self.do(("progress", tokens, list("abcdef")))

    @rule()
    def close(self) -> None:
        self.journal.close()
        self._open()

    @rule()
    def crash(self) -> None:
        target = Path(self.root.name) / str(next(self.lives))
        copied(self.folder, target)
        self.journal.close()
        self.folder = target
        self._open()

    def _open(self) -> None:
        self.journal = Journal.open(self.folder, rotate_bytes=TINY)
        self.model = self.model.crashed()

    @invariant()
    def says_what_it_must(self) -> None:
        assert self.journal.id == self.id
        assert self.journal.open_requests == len(self.model.open)
        assert view(self.journal) == self.model.view()

    def teardown(self) -> None:
        self.journal.close()
        self.root.cleanup()


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_file_that_is_no_journal_or_damaged_at_its_start_is_left_alone(folder: Path) -> None:
    with closing(Journal.open(folder)):
        pass
    for content in (b"something else", (folder / FILE).read_bytes()[1:]):
        (folder / FILE).write_bytes(content)
        with pytest.raises(JournalFailed, match=f"{folder / FILE} is damaged or no journal"):
            Journal.open(folder)
        assert (folder / FILE).read_bytes() == content
    (folder / FILE).write_bytes(b"")
    assert reopened(folder) == ([], Totals(), Totals())


def test_a_journal_of_another_version_is_left_alone(folder: Path) -> None:
    with closing(Journal.open(folder)):
        pass
    with (folder / FILE).open("ab") as file:
        file.write(bytes.fromhex("01000000 3d2d6649 c0"))  # a whole record: msgpack's nil
    content = (folder / FILE).read_bytes()
    with pytest.raises(JournalFailed, match="is of another version of Lorikeet"):
        Journal.open(folder)
    assert (folder / FILE).read_bytes() == content


# --- rotation ------------------------------------------------------------------------------------


def test_a_file_stays_small_however_long_requests_run(folder: Path, journal: Journal) -> None:
    journal.opened("a", account("a"), "acme/a")
    for step in range(2000):
        journal.progressed([("a", Meter(10, 0, step))])
        assert (folder / FILE).stat().st_size < TINY + 100
    assert [one.usage.completion_tokens for one in reopened(copied_of(folder))[0]] == [1999]


def copied_of(folder: Path) -> Path:
    return copied(folder, folder.with_name("copy"))


def test_a_file_of_live_entries_is_not_written_anew(folder: Path, journal: Journal) -> None:
    with (folder / FILE).open() as first:  # held, so that no other gets its inode
        for n in range(50):
            journal.opened(f"r{n}", account(f"r{n}"), "base")
        assert os.path.samestat(os.fstat(first.fileno()), (folder / FILE).stat())
    long = (folder / FILE).stat().st_size
    assert long > 3 * TINY
    for n in range(50):
        journal.closed(f"r{n}", used(n), "stop")
        journal.acknowledged([f"r{n}"])
    assert (folder / FILE).stat().st_size < long


class Crashes:
    """Copies the folder before and after each system call that changes it, and within writes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.ops = folder, 0
        self.copies: list[tuple[int, Path]] = []
        """Each with the operations that were completed before it."""
        self._write = os.write
        monkeypatch.setattr(os, "write", self._write_in_two)
        for name in ("open", "fsync", "ftruncate", "rename", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._around(getattr(os, name)))

    def copy(self) -> None:
        target = self.folder.with_name(f"crash{len(self.copies)}")
        self.copies.append((self.ops, copied(self.folder, target)))

    def _write_in_two(self, fd: int, data: bytes) -> int:
        self._write(fd, data[: len(data) // 2])
        self.copy()
        self._write(fd, data[len(data) // 2 :])
        self.copy()
        return len(data)

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            self.copy()
            result = call(*arguments)
            self.copy()
            return result

        return wrapped


def test_a_crash_at_any_point_leaves_a_journal_that_opens_rightly(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotations, inode = 0, (folder / FILE).stat().st_ino
    with monkeypatch.context() as patch:
        crashes = Crashes(folder, patch)
        for op in itertools.islice(traffic(), 150):
            act(journal, op)
            crashes.ops += 1
            rotations += inode != (inode := (folder / FILE).stat().st_ino)
    assert rotations > 2
    half_written = [path for _, path in crashes.copies if (path / "journal.next").exists()]
    assert len(half_written) > 2 * rotations
    for ops, path in crashes.copies:
        expected = [model_after(n).crashed().view() for n in (ops, ops + 1)]
        assert reopened(path) in expected


def test_a_new_file_that_cannot_be_made_is_tried_again(folder: Path, journal: Journal) -> None:
    obstacle = folder / "journal.next"
    obstacle.mkdir()
    with capture_logs() as lines:
        for op in itertools.islice(traffic(), 100):
            act(journal, op)
    failed = [line["event"] for line in lines]
    assert failed and set(failed) == {"journal_not_rotated"}
    assert len(failed) < 20, "not with every record"
    long = (folder / FILE).stat().st_size
    obstacle.rmdir()
    for op in itertools.islice(traffic(), 100, 200):
        act(journal, op)
    assert (folder / FILE).stat().st_size < long
    assert view(journal) == model_after(200).view()


def test_a_folder_that_cannot_be_synced_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def fsync(fd: int) -> None:
        if S_ISDIR(os.fstat(fd).st_mode):
            raise OSError("no sync of folders")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with capture_logs() as lines, closing(Journal.open(folder)) as journal:
        journal.opened("a", account("a"), "acme/a")
    assert [line["event"] for line in lines] == ["journal_folder_not_synced"]
    monkeypatch.undo()
    assert reopened(folder)[1] == Totals(1)


# --- a disk that is full or broken ---------------------------------------------------------------


@contextmanager
def disk_full_at(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes: a write up to there is cut short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


CALLS: list[Op] = [
    ("open", "new"),
    ("progress", 5, ["r7", "r8"]),
    ("close", "r8", 5),
    ("acknowledge", ["r4"]),
]


@pytest.mark.parametrize("op", CALLS, ids=lambda op: op[0])
@pytest.mark.parametrize("room", [0, 1, 10])
def test_a_full_disk_refuses_whole_records_and_the_journal_goes_on(
    folder: Path, op: Op, room: int
) -> None:
    with closing(Journal.open(folder)) as journal:
        for one in itertools.islice(traffic(), 30):
            act(journal, one)
        content = (folder / FILE).read_bytes()
        with (
            disk_full_at(len(content) + room),
            pytest.raises(JournalFailed, match=f"cannot write {folder / FILE}"),
        ):
            act(journal, op)
        assert (folder / FILE).read_bytes() == content
        model = model_after(30)
        assert view(journal) == model.view()
        act(journal, op)
        model.apply(op)
        assert view(journal) == model.view()
    assert reopened(folder) == model.crashed().view()


def test_a_part_of_a_record_that_cannot_be_cut_off_at_once_is_cut_off_before_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ftruncate(fd: int, size: int) -> None:
        raise OSError("no")

    with closing(Journal.open(folder)) as journal:
        size = (folder / FILE).stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", ftruncate)
            with disk_full_at(size + 5), pytest.raises(JournalFailed):
                act(journal, ("open", "a"))
            assert (folder / FILE).stat().st_size == size + 5
            with pytest.raises(JournalFailed):
                act(journal, ("open", "b"))
            assert (folder / FILE).stat().st_size == size + 5, "nothing behind a torn record"
        assert reopened(copied_of(folder)) == ([], Totals(), Totals())
        act(journal, ("open", "c"))
    assert [one.id for one in reopened(folder)[0]] == ["c"]


def test_a_journal_that_cannot_be_opened_says_so_and_leaves_everything(folder: Path) -> None:
    Written(folder, list(itertools.islice(traffic(), 20)))
    content = (folder / FILE).read_bytes()
    descriptors = os.listdir("/proc/self/fd")
    with (
        capture_logs(),
        disk_full_at(100),
        pytest.raises(JournalFailed, match=f"cannot open the journal in {folder}: .*part"),
    ):
        Journal.open(folder)
    assert sorted(os.listdir(folder)) == [FILE, "lock"]
    assert (folder / FILE).read_bytes() == content
    with pytest.raises(JournalFailed, match=f"cannot open the journal in {folder / FILE}"):
        Journal.open(folder / FILE)
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    assert reopened(folder) == model_after(20).crashed().view()


def test_a_closed_journal_writes_nowhere(folder: Path, tmp_path: Path) -> None:
    journal = Journal.open(folder)
    journal.close()
    with (tmp_path / "1").open("w"), (tmp_path / "2").open("w"):  # they get its descriptors
        with pytest.raises(JournalFailed):
            act(journal, ("open", "a"))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes() == b""


def test_close_frees_everything_even_if_the_disk_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        raise OSError("disk on fire")

    descriptors = os.listdir("/proc/self/fd")
    journal = Journal.open(folder)
    act(journal, ("open", "a"))
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(JournalFailed, match=f"sync the journal in {folder}: disk on fire"):
        journal.close()
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    assert reopened(folder)[1] == Totals(1)


# --- other processes -----------------------------------------------------------------------------


def keep_open(folder: str) -> None:
    """In a child: hold the journal, and leave a forked child of its own behind."""
    Journal.open(Path(folder))
    if (child := os.fork()) == 0:
        sys.stdin.read()
        os._exit(0)
    print(child, flush=True)
    signal.pause()


def run_traffic(folder: str) -> None:
    """In a child: journal without end, and say each time how many operations are done."""
    journal = Journal.open(Path(folder), rotate_bytes=TINY)
    for done, op in enumerate(traffic(), 1):
        act(journal, op)
        print(done, flush=True)


@contextmanager
def child(function: Callable[[str], None], folder: Path) -> Iterator[subprocess.Popen[str]]:
    code = f"import sys; from {__name__} import {function.__name__} as f; f(sys.argv[1])"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_folder_belongs_to_one_process_until_that_dies(folder: Path) -> None:
    with child(keep_open, folder) as agent:
        assert agent.stdout is not None
        engine_core = int(agent.stdout.readline())
        descriptors = os.listdir("/proc/self/fd")
        with pytest.raises(JournalFailed, match=f"the journal in {folder} is in use by another"):
            Journal.open(folder)
        assert len(os.listdir("/proc/self/fd")) == len(descriptors)
        agent.kill()
        agent.wait()
        os.kill(engine_core, 0)  # it lives on, and keeps nobody out
        assert reopened(folder) == ([], Totals(), Totals())


@pytest.mark.parametrize("least", [1, 40, 777])
def test_kill_9_takes_nothing_that_was_written(folder: Path, least: int) -> None:
    with child(run_traffic, folder) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(least)]
        process.kill()
        said += process.stdout.readlines()
    done = [int(line) for line in said if line.endswith("\n")]
    assert done == list(range(1, len(done) + 1))
    may_be = [model_after(n).crashed().view() for n in (len(done), len(done) + 1)]
    assert reopened(folder) in may_be
