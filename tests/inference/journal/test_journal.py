"""The journal against a plain model: a request's life, restarts, new files for old ones."""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from stat import S_ISDIR

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from structlog.testing import capture_logs

from inference.agent.engines.engine import Meter
from inference.agent.journal.journal import FILE, Journal, JournalFailed
from inference.link.wire import Totals, Usage
from tests.inference.journals import (
    OPS,
    RAM,
    TINY,
    Model,
    Op,
    account,
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
    journal.write()
    before = (folder / FILE).read_bytes()
    assert journal.closed("a", used(2), "stop") is None
    assert journal.closed("b", used(2), "stop") is None
    journal.progressed([("a", Meter(1)), ("b", Meter(1))])
    journal.progressed([])
    journal.acknowledged(["b"])
    journal.acknowledged([])
    journal.write()
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


def test_whatever_was_gathered_is_one_write(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / FILE).read_bytes()
    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or write(fd, data))
    for id in "abc":
        journal.opened(id, account(id), f"acme/{id}")
    journal.progressed((id, Meter(1, 0, 1)) for id in "abc")
    journal.closed("b", used(1), "stop")
    assert (folder / FILE).read_bytes() == before
    journal.write()
    assert (folder / FILE).read_bytes() == before + writes[0]
    journal.write()
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


class Restarts(RuleBasedStateMachine):
    """Closed or crashed at any time, a journal says what it must."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory(dir=RAM)
        self.lives = itertools.count()
        self.model = Model()
        self.written = Model()
        self.folder = Path(self.root.name) / "first"
        self.journal = Journal.open(self.folder, rotate_bytes=TINY)
        self.id = self.journal.id

    @rule(op=OPS)
    def do(self, op: Op) -> None:
        if not fits(self.model, op):
            return
        tell(self.journal, op)
        self.model.apply(op)

    @rule()
    def write(self) -> None:
        self.journal.write()
        self.written = copy.deepcopy(self.model)

    @rule(steps=st.integers(1, 60))
    def generate(self, steps: int) -> None:
        """What fills files."""
        for tokens in range(steps):
            self.do(("progress", tokens, list("abcdef")))
            self.write()

    @rule()
    def close(self) -> None:
        self.journal.close()
        self.written = self.model
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
        self.model = self.written.crashed()
        self.written = self.model.crashed()

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
        journal.write()
        assert (folder / FILE).stat().st_size < TINY + 100
    assert [
        one.usage.completion_tokens for one in reopened(copied(folder, folder.with_name("copy")))[0]
    ] == [1999]


def test_a_file_of_live_entries_is_not_written_anew(folder: Path, journal: Journal) -> None:
    with (folder / FILE).open() as first:  # held, so that no other gets its inode
        for n in range(50):
            journal.opened(f"r{n}", account(f"r{n}"), "base")
            journal.write()
        assert os.path.samestat(os.fstat(first.fileno()), (folder / FILE).stat())
    long = (folder / FILE).stat().st_size
    assert long > 3 * TINY
    for n in range(50):
        journal.closed(f"r{n}", used(n), "stop")
        journal.acknowledged([f"r{n}"])
        journal.write()
    assert (folder / FILE).stat().st_size < long


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
