"""The journal cut at any byte, killed at any system call, and on a full disk."""

from __future__ import annotations

import copy
import itertools
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from inference.agent.journal.files import FILE, JournalFailed
from inference.agent.journal.journal import Journal
from inference.link.accounts import Totals, Usage
from tests.inference.journals import (
    OPS,
    RAM,
    TINY,
    AtOnce,
    Model,
    Op,
    act,
    copied,
    entry,
    fits,
    model_after,
    reopened,
    tell,
    totals,
    traffic,
    used,
    view,
)

pytestmark = pytest.mark.pure


# --- files that are cut --------------------------------------------------------------------------


class Written:
    """A journal, and the model's state for every offset at which its present file may be cut."""

    def __init__(self, folder: Path, ops: list[Op]) -> None:
        self.path = folder / FILE
        with closing(Journal.open(folder, rotate_bytes=TINY, executor=AtOnce())) as journal:
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
            self.marks = []  # a new file begins with a snapshot of everything
        self.marks.append((now, model))

    @property
    def snapshot_bytes(self) -> int:
        return self.marks[0][0].st_size

    @property
    def bytes(self) -> int:
        return self.marks[-1][0].st_size

    def up_to(self, offset: int) -> tuple[int, Model]:
        """Where the last complete record before `offset` ends, and what the journal must know
        then."""
        stat, model = [mark for mark in self.marks if mark[0].st_size <= offset][-1]
        return stat.st_size, model


HISTORIES = st.builds(
    lambda before, ops: [*itertools.islice(traffic(), before), *ops],
    st.integers(0, 100),  # about the first 35 fill a file
    st.lists(OPS, max_size=40),
)


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


@given(flip=st.integers(1, 255), data=st.data())
def test_damage_costs_no_record_but_the_one_that_it_is_in(flip: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=RAM) as root:
        folder = Path(root)
        with closing(Journal.open(folder)) as journal:
            begun = (folder / FILE).stat().st_size
            for op in itertools.islice(traffic(), 40):
                act(journal, op)
            backlog = journal.unacknowledged()
        content = bytearray((folder / FILE).read_bytes())
        content[data.draw(st.integers(begun, len(content) - 1))] ^= flip
        (folder / FILE).write_bytes(content)
        found = reopened(folder)[0]
    assert len([one for one in backlog if one not in found]) <= 1
    repeated = {one.id for one in found} - {one.id for one in model_after(40).crashed().view()[0]}
    assert len(repeated) <= 6, "of one acknowledgement"


def test_a_request_whose_beginning_was_damaged_leaves_nothing_to_others(folder: Path) -> None:
    with closing(Journal.open(folder)) as journal:
        begun = (folder / FILE).stat().st_size
        act(journal, ("open", "damaged"))
        act(journal, ("progress", 9, ["damaged"]))
    content = bytearray((folder / FILE).read_bytes())
    content[begun] ^= 1
    (folder / FILE).write_bytes(content)
    with closing(Journal.open(folder)) as journal:
        act(journal, ("open", "new"))
        entries = reopened(copied(folder, folder.with_name("killed")))[0]
    assert entries == [entry("new", Usage(), "engine_lost")]


def test_a_cut_in_a_write_of_many_records_keeps_those_before_it(folder: Path) -> None:
    with closing(Journal.open(folder)) as journal:
        act(journal, ("open", "first"))
        act(journal, ("progress", 3, ["first"]))
        before = (folder / FILE).stat().st_size
        for op in [("close", "first", 5), *itertools.islice(traffic(), 20)]:
            tell(journal, op)
        journal.write()
        after = journal.unacknowledged()
    content, counts = (folder / FILE).read_bytes(), set()
    for offset in range(before, len(content) + 1):
        (folder / FILE).write_bytes(content[:offset])
        entries = reopened(folder)[0]
        ended = [one for one in entries if one.finish_reason == "stop"]
        assert ended == after[: len(ended)]
        assert ended or entries == [entry("first", used(3), "engine_lost")]
        counts.add(len(ended))
    assert counts == set(range(len(after) + 1))


@pytest.mark.parametrize("zeros", [1, 6, 4096])
def test_zero_bytes_are_not_records(folder: Path, zeros: int) -> None:
    """What a file system may leave of blocks that were never written, at any position."""
    written = Written(folder, list(itertools.islice(traffic(), 10)))
    content, begun = written.path.read_bytes(), written.snapshot_bytes
    written.path.write_bytes(content[:begun] + bytes(zeros) + content[begun:] + bytes(zeros))
    assert reopened(folder) == model_after(10).crashed().view()


def test_a_cut_in_a_snapshot_keeps_the_entries_before_it(folder: Path) -> None:
    Written(folder, list(itertools.islice(traffic(), 60)))
    entries, *_ = reopened(folder)  # the file now consists of a snapshot only
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


# --- a process that dies at a system call --------------------------------------------------------


class Crashes:
    """Copies the folder before and after each system call that changes it, and in the middle of
    writes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.ops = folder, 0
        self.copies: list[tuple[int, Path]] = []
        """Each with the number of operations completed before it."""
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
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(Journal.open(folder, rotate_bytes=TINY, executor=AtOnce())) as journal,
        monkeypatch.context() as patch,
    ):
        rotations, inode = 0, (folder / FILE).stat().st_ino
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


# --- a disk that is full or broken ---------------------------------------------------------------


@contextmanager
def disk_full_at(size: int) -> Iterator[None]:
    """Limits the files of this process to `size` bytes; a write beyond that is cut short."""
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
        model.apply(op)
        assert view(journal) == model.view()
        journal.write()
        assert reopened(copied(folder, folder.with_name("copy"))) == model.crashed().view()
        journal.write()
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
        assert reopened(copied(folder, folder.with_name("copy"))) == ([], Totals(), Totals())
        act(journal, ("open", "c"))
    assert [one.id for one in reopened(folder)[0]] == ["a", "b", "c"], "they were kept for it"


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
    with (tmp_path / "1").open("w"), (tmp_path / "2").open("w"):  # reuse its descriptors
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
    """Runs in a child: hold the journal and leave a forked child behind."""
    Journal.open(Path(folder))
    if (child := os.fork()) == 0:
        sys.stdin.read()
        os._exit(0)
    print(child, flush=True)
    signal.pause()


def run_traffic(folder: str) -> None:
    """Runs in a child: journal without end, and print how many operations are done."""
    journal = Journal.open(Path(folder), rotate_bytes=TINY, executor=AtOnce())
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
        os.kill(engine_core, 0)  # it lives on without holding the lock
        assert reopened(folder) == ([], Totals(), Totals())


@pytest.mark.parametrize("least", [1, 40, 777])
def test_sigkill_loses_nothing_that_was_written(folder: Path, least: int) -> None:
    with child(run_traffic, folder) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(least)]
        process.kill()
        said += process.stdout.readlines()
    done = [int(line) for line in said if line.endswith("\n")]
    assert done == list(range(1, len(done) + 1))
    may_be = [model_after(n).crashed().view() for n in (len(done), len(done) + 1)]
    assert reopened(folder) in may_be
