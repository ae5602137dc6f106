"""The harness's own reader of journals, against the product's writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.agent.engines.engine import Meter
from inference.agent.journal.journal import Journal
from inference.link.accounts import Account, Usage
from tests.labs.chaos.judging.facts import Counts, Entry
from tests.labs.chaos.judging.sources import journals

ACCOUNT = Account(3, 7, 1234.5678, "base", 11, 12)


def entry(journal: str, id: str, counts: Counts, reason: str) -> Entry:
    return Entry(id, journal, 3, 7, "plain", counts, reason, 1234.5678)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The journal of a killed agent: one request billed, one ended, one open."""
    journal = Journal.open(tmp_path)
    for id in ("billed", "ended", "open"):
        journal.opened((id, 1), ACCOUNT, "plain")
    journal.progressed([(("billed", 1), Meter(9, 4, 1)), (("open", 1), Meter(9, 0, 5))])
    journal.write()
    journal.closed(("billed", 1), Usage(9, 4, 2), "length")
    journal.closed(("ended", 1), Usage(9, 8, 3, 1, 0.5), "cancelled")
    journal.acknowledged([("billed", 1)])
    journal.write()
    return tmp_path


def test_a_file_says_what_was_written(folder: Path) -> None:
    file = journals.read(folder / "journal")
    assert file.closed == [
        entry(file.id, "billed", Counts(9, 4, 2), "length"),
        entry(file.id, "ended", Counts(9, 8, 3), "cancelled"),
    ]
    assert file.closed[0].started_at == ACCOUNT.started_at
    assert (file.end.requests, file.end.open, file.end.unacknowledged) == (2, 1, 1)


def test_the_next_file_of_the_journal(folder: Path) -> None:
    """It begins with a snapshot: acknowledged entries become a count, open requests have ended."""
    (folder / "lock").unlink()  # its owner died
    first = journals.read(folder / "journal")
    journal = Journal.open(folder)
    second = journals.read(folder / "journal")
    assert second.id == first.id == journal.id
    assert second.closed == [
        first.closed[1],
        entry(first.id, "open", Counts(9, 0, 5), "engine_lost"),
    ]
    assert (second.end.requests, second.end.open, second.end.unacknowledged) == (3, 0, 2)
    journal.acknowledged([("ended", 1), ("open", 1)])
    journal.write()
    assert journals.read(folder / "journal").end.unacknowledged == 0
    journal.close()


def test_attempts_of_a_request_are_apart(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    for attempt in (1, 2, 3):
        journal.opened(("moved", attempt), ACCOUNT, "plain")
    for attempt in (2, 1):
        journal.closed(("moved", attempt), Usage(9, 0, attempt), "stop")
    journal.acknowledged([("moved", 2)])
    journal.write()
    file = journals.read(tmp_path / "journal")
    assert [(one.attempt, one.counts.completion_tokens) for one in file.closed] == [(2, 2), (1, 1)]
    assert (file.open, file.unacknowledged) == ({("moved", 3)}, {("moved", 1)})
    assert (file.end.requests, file.end.open, file.end.unacknowledged) == (2, 1, 1)
    journal.close()


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_record_is_left_out(folder: Path, cut: int) -> None:
    path = folder / "journal"
    path.write_bytes(path.read_bytes()[:-cut])
    assert journals.read(path).end.unacknowledged == 2
