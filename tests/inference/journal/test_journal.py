"""The journal compared with a plain model: the life of requests, restarts, rotation."""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
import threading
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
from inference.agent.journal.files import FILE, JournalFailed
from inference.agent.journal.journal import Journal
from inference.agent.journal.records import (
    VERSION,
    BegunRecord,
    JournalState,
    Opened,
    Progressed,
    framed,
)
from inference.link.accounts import Totals, Usage
from tests.inference.journals import (
    OPS,
    RAM,
    TINY,
    AtOnce,
    Model,
    Op,
    SlowDisk,
    account,
    act,
    attempt,
    copied,
    entry,
    fits,
    model_after,
    open_,
    reopened,
    tell,
    totals,
    traffic,
    used,
    view,
)

pytestmark = pytest.mark.pure


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    with closing(Journal.open(folder, rotate_bytes=TINY, executor=AtOnce())) as opened:
        yield opened


# --- a request's life ----------------------------------------------------------------------------


def test_a_request_is_opened_progresses_is_closed_and_is_acknowledged(journal: Journal) -> None:
    open_(journal, "a")
    journal.progressed([(attempt("a"), Meter(10, 4, 1, 0))])
    assert (journal.open_requests, journal.backlog) == (1, 0)
    assert journal.journaled == Totals()
    usage = Usage(10, 4, 7, 2, 0.1, 0.2, 0.3, 0.4)
    ended = journal.closed(attempt("a"), usage, "length")
    assert ended == entry("a", usage, "length")
    assert (journal.open_requests, journal.unacknowledged()) == (0, [ended])
    assert journal.journaled == journal.unbilled == Totals(1, 10, 4, 7)
    journal.acknowledged([attempt("a")])
    assert (journal.backlog, journal.unacknowledged()) == (0, [])
    assert (journal.journaled, journal.unbilled) == (Totals(1, 10, 4, 7), Totals())


def test_a_request_that_cost_nothing_is_an_entry_too(journal: Journal) -> None:
    open_(journal, "a")
    assert journal.closed(attempt("a"), Usage(), "cancelled") == entry("a", Usage(), "cancelled")
    assert journal.journaled == Totals(1)


def test_ids_that_are_not_known_change_nothing(journal: Journal, folder: Path) -> None:
    open_(journal, "a")
    journal.closed(attempt("a"), used(1), "stop")
    journal.write()
    before = (folder / FILE).read_bytes()
    assert journal.closed(attempt("a"), used(2), "stop") is None
    assert journal.closed(attempt("b"), used(2), "stop") is None
    journal.progressed([(attempt("a"), Meter(1)), (attempt("b"), Meter(1))])
    journal.progressed([])
    journal.acknowledged([attempt("b")])
    journal.acknowledged([])
    journal.write()
    assert (folder / FILE).read_bytes() == before
    journal.acknowledged(map(attempt, "aba"))
    assert journal.unbilled == Totals()


def test_an_id_is_not_taken_twice(journal: Journal) -> None:
    open_(journal, "a")
    with pytest.raises(ValueError, match="attempt 1 of request a is already in the journal"):
        open_(journal, "a")
    journal.closed(attempt("a"), used(1), "stop")
    with pytest.raises(ValueError, match="attempt 1 of request a is already in the journal"):
        open_(journal, "a")


def test_gathered_records_are_one_write(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / FILE).read_bytes()
    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or write(fd, data))
    for id in "abc":
        open_(journal, id)
    journal.progressed((attempt(id), Meter(1, 0, 1)) for id in "abc")
    journal.closed(attempt("b"), used(1), "stop")
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
            open_(journal, id)
        journal.progressed([(attempt("a"), Meter(10, 4, 1)), (attempt("b"), Meter(5, 0, 1))])
        journal.progressed([(attempt("a"), Meter(10, 4, 2, 1))])
        journal.closed(attempt("b"), used(9), "stop")
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


def test_a_lost_request_is_billed_as_an_estimate_if_its_last_figures_were(folder: Path) -> None:
    with closing(Journal.open(folder)) as journal:
        for id in "abc":
            open_(journal, id)
        guessed, exact = Meter(5, 0, 1, is_estimated=True), Meter(5, 0, 1)
        journal.progressed([(attempt(id), guessed) for id in "abc"])
        journal.progressed([(attempt("b"), exact)])
        journal.closed(attempt("c"), Usage(5, 0, 1, is_estimated=True), "stop")
    with closing(Journal.open(folder)) as journal:
        marks = {one.id: one.usage.is_estimated for one in journal.unacknowledged()}
        assert marks == {"a": True, "b": False, "c": True}


def test_a_snapshot_keeps_which_figures_are_estimates() -> None:
    state, copied_state = JournalState(), JournalState()
    for handle, id in enumerate("ab"):
        state.apply(Opened(handle, id, account(id), "m"))
    state.apply(Progressed([(0, 5, 0, 1, 0), (1, 5, 0, 1, 0)], [0]))
    for record in state.snapshot():
        copied_state.apply(record)
    copied_state.lose()
    marks = [one.usage.is_estimated for one in copied_state.closed.values()]
    assert marks == [True, False]


class Restarts(RuleBasedStateMachine):
    """Closed or crashed at any time, on a disk however slow, a journal agrees with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory(dir=RAM)
        self.lives = itertools.count()
        self.model = Model()
        self.written = Model()
        self.folder = Path(self.root.name) / "first"
        self.disk = SlowDisk()
        self.journal = Journal.open(self.folder, rotate_bytes=TINY, executor=self.disk)
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

    @rule()
    def wait_for_the_disk(self) -> None:
        self.disk.work()

    @rule(steps=st.integers(1, 60))
    def generate(self, steps: int) -> None:
        """Writes enough to fill files."""
        for tokens in range(steps):
            self.do(("progress", tokens, ["a", "b", "c", "d", "a/2", "b/2"]))
            self.write()

    @rule()
    def close(self) -> None:
        self._close()
        self.written = self.model
        self._open()

    @rule()
    def crash(self) -> None:
        target = Path(self.root.name) / str(next(self.lives))
        copied(self.folder, target)
        self._close()
        self.folder = target
        self._open()

    def _close(self) -> None:
        while self.disk:
            self.disk.work()
        self.journal.close()

    def _open(self) -> None:
        self.journal = Journal.open(self.folder, rotate_bytes=TINY, executor=self.disk)
        self.model = self.written.crashed()
        self.written = self.model.crashed()

    @invariant()
    def says_what_it_must(self) -> None:
        assert self.journal.id == self.id
        assert self.journal.open_requests == len(self.model.open)
        assert view(self.journal) == self.model.view()
        assert len(self.disk) <= 2, "the next file, and the end of the last one"

    def teardown(self) -> None:
        self._close()
        self.root.cleanup()


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(stateful_step_count=30)


def test_a_file_that_is_no_journal_or_damaged_at_its_start_is_left_alone(folder: Path) -> None:
    with closing(Journal.open(folder)):
        pass
    for content in (b"something else", (folder / FILE).read_bytes()[1:]):
        (folder / FILE).write_bytes(content)
        with pytest.raises(JournalFailed, match=f"{folder / FILE} is damaged or not a journal"):
            Journal.open(folder)
        assert (folder / FILE).read_bytes() == content
    (folder / FILE).write_bytes(b"")
    assert reopened(folder) == ([], Totals(), Totals())


def test_a_journal_of_another_version_is_left_alone(folder: Path) -> None:
    with closing(Journal.open(folder)):
        pass
    with (folder / FILE).open("ab") as file:
        file.write(bytes.fromhex("01000000 3d2d6649 c0"))  # a complete record: msgpack's nil
    content = (folder / FILE).read_bytes()
    with pytest.raises(JournalFailed, match="was written by another version of Lorikeet"):
        Journal.open(folder)
    assert (folder / FILE).read_bytes() == content


# --- versions ------------------------------------------------------------------------------------


def test_a_journal_of_a_later_version_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    content = framed(BegunRecord("id", Totals(), version=VERSION + 1))
    (folder / FILE).write_bytes(content)
    with pytest.raises(JournalFailed, match="by a newer version of Lorikeet: its records have"):
        Journal.open(folder)
    assert (folder / FILE).read_bytes() == content


# --- attempts ------------------------------------------------------------------------------------


def test_attempts_of_a_request_are_apart(journal: Journal, folder: Path) -> None:
    for name in ("a", "a/2", "a/3"):
        act(journal, ("open", name))
    journal.progressed([(("a", 1), Meter(3, 0, 1)), (("a", 3), Meter(3, 0, 9))])
    act(journal, ("close", "a/2", 5))
    act(journal, ("close", "a", 2))
    assert [(one.attempt, one.usage.completion_tokens) for one in journal.unacknowledged()] == [
        (2, 5),
        (1, 2),
    ]
    act(journal, ("acknowledge", ["a/2"]))
    left = reopened(copied(folder, folder.with_name("killed")))[0]
    assert [(one.attempt, one.usage.completion_tokens) for one in left] == [(1, 2), (3, 9)]
    assert journal.journaled == totals([used(5), used(2)])


# --- rotation ------------------------------------------------------------------------------------


def test_a_file_stays_small_however_long_requests_run(folder: Path, journal: Journal) -> None:
    open_(journal, "a")
    for step in range(2000):
        journal.progressed([(attempt("a"), Meter(10, 0, step))])
        journal.write()
        assert (folder / FILE).stat().st_size < TINY + 100
    assert [
        one.usage.completion_tokens for one in reopened(copied(folder, folder.with_name("copy")))[0]
    ] == [1999]


def test_a_file_of_live_entries_is_not_written_anew(folder: Path, journal: Journal) -> None:
    with (folder / FILE).open() as first:  # held open, so that a new file cannot get its inode
        for n in range(50):
            open_(journal, f"r{n}")
            journal.write()
        assert os.path.samestat(os.fstat(first.fileno()), (folder / FILE).stat())
    long = (folder / FILE).stat().st_size
    assert long > 3 * TINY
    for n in range(50):
        journal.closed(attempt(f"r{n}"), used(n), "stop")
        journal.acknowledged([attempt(f"r{n}")])
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


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def waiting(folder: Path, disk: SlowDisk) -> Iterator[Journal]:
    """A journal that waits for its next file, but would not wait for ever."""
    journal = Journal.open(folder, rotate_bytes=10 * TINY, executor=disk)
    for number in itertools.count():
        if disk:
            break
        act(journal, ("open", f"before{number}"))
        act(journal, ("close", f"before{number}", number))
        act(journal, ("acknowledge", [f"before{number}"]))
    yield journal
    while disk:
        disk.work()
    journal.close()


def test_what_happens_while_the_disk_is_waited_for_is_journaled_at_once(
    folder: Path, disk: SlowDisk, waiting: Journal
) -> None:
    with (folder / FILE).open() as old:  # held open, so that a new file cannot get its inode
        act(waiting, ("open", "meanwhile"))
        act(waiting, ("progress", 7, ["meanwhile"]))
        assert os.path.samestat(os.fstat(old.fileno()), (folder / FILE).stat())
        killed = reopened(copied(folder, folder.with_name("during")))
        assert killed[0] == [entry("meanwhile", used(7), "engine_lost")]
        disk.work()
        killed = reopened(copied(folder, folder.with_name("made")))
        assert killed[0] == [entry("meanwhile", used(7), "engine_lost")]
        waiting.write()
        assert not os.path.samestat(os.fstat(old.fileno()), (folder / FILE).stat())
    act(waiting, ("close", "meanwhile", 9))
    assert reopened(copied(folder, folder.with_name("after")))[0] == waiting.unacknowledged()


def test_an_acknowledgement_is_not_forgotten_while_the_disk_is_waited_for(
    folder: Path, disk: SlowDisk, waiting: Journal
) -> None:
    act(waiting, ("open", "a"))
    act(waiting, ("close", "a", 3))
    act(waiting, ("acknowledge", ["a"]))
    disk.work()
    waiting.write()
    assert reopened(copied(folder, folder.with_name("copy")))[0] == []
    assert reopened(copied(folder, folder.with_name("copy2")))[1] == waiting.journaled


def test_one_next_file_is_made_at_a_time(disk: SlowDisk, waiting: Journal) -> None:
    for number in range(200):
        act(waiting, ("progress", number, ["before0"]))
        act(waiting, ("open", f"r{number}"))
        act(waiting, ("close", f"r{number}", 1))
        act(waiting, ("acknowledge", [f"r{number}"]))
    assert len(disk) == 1


def test_a_disk_that_is_too_slow_gets_no_next_file(
    folder: Path, disk: SlowDisk, waiting: Journal
) -> None:
    for number in range(100):
        act(waiting, ("open", f"r{number}"))
        act(waiting, ("close", f"r{number}", 1))
        act(waiting, ("acknowledge", [f"r{number}"]))
    disk.work()
    with capture_logs() as lines:
        waiting.write()
    assert [(line["event"], line["error"]) for line in lines] == [
        ("journal_not_rotated", "the disk was too slow")
    ]
    assert sorted(os.listdir(folder)) == [FILE, "lock"]
    assert reopened(copied(folder, folder.with_name("copy")))[1] == waiting.journaled


def test_a_journal_that_is_closed_waits_for_its_own_thread(folder: Path) -> None:
    journal = Journal.open(folder, rotate_bytes=TINY)
    for op in itertools.islice(traffic(), 300):
        act(journal, op)
    journal.close()
    assert sorted(os.listdir(folder)) == [FILE, "lock"]
    assert not [one for one in threading.enumerate() if one.name.startswith("journal")]
    assert reopened(folder) == model_after(300).crashed().view()


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
        open_(journal, "a")
    assert [line["event"] for line in lines] == ["journal_folder_not_synced"]
    monkeypatch.undo()
    assert reopened(folder)[1] == Totals(1)
