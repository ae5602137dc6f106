"""Journals left behind by engines, and which engine bills their entries."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from inference.agent.journal.files import FILE
from inference.agent.journal.journal import Journal
from inference.agent.journal.shared import REMOVED, leave, take
from tests.gateway.test_planes import ROOT
from tests.inference.journals import account, attempt, open_, used

HOLDS = """
import sys
from pathlib import Path
from inference.agent.journal.shared import take
folder, journal = take(Path(sys.argv[1]))
print(folder.name, flush=True)
sys.stdin.read()
"""


def holder(root: Path) -> tuple[subprocess.Popen[str], str]:
    """Start another engine's process, which holds a journal under `root`; returns it and the
    journal's name."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(root)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def lost(root: Path, requests: int) -> Path:
    """The journal of a killed engine, with `requests` entries to bill and one open request."""
    folder, journal = take(root)
    for number in range(requests + 1):
        open_(journal, f"r{number}")
    for number in range(requests):
        journal.closed(attempt(f"r{number}"), used(5), "stop")
    journal.write()
    journal.close()
    return folder


def test_a_lost_engines_journal_is_billed_by_the_next_one(tmp_path: Path) -> None:
    left = lost(tmp_path, 2)
    folder, journal = take(tmp_path)
    with closing(journal):
        assert folder == left
        found = {entry.id: entry.account for entry in journal.unacknowledged()}
        assert found == {f"r{number}": account(f"r{number}") for number in range(3)}


def test_one_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    process, name = holder(tmp_path)
    with process:
        folder, journal = take(tmp_path)
        journal.close()
        assert folder.name != name
        assert process.stdin is not None
        process.stdin.close()
    (tmp_path / folder.name / FILE).unlink()
    folder.joinpath("lock").unlink()
    folder.rmdir()
    again, journal = take(tmp_path)
    journal.close()
    assert again.name == name, "its owner is gone"


def test_one_in_which_nothing_waits_is_deleted_at_the_end(tmp_path: Path) -> None:
    folder, journal = take(tmp_path)
    with closing(journal):
        open_(journal, "r0")
        leave(folder, journal)
        assert folder.exists(), "a request is open"
        journal.closed(attempt("r0"), used(5), "stop")
        leave(folder, journal)
        assert folder.exists(), "it is not billed"
        journal.acknowledged([attempt("r0")])
        leave(folder, journal)
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_moved_is_left(tmp_path: Path) -> None:
    folder, journal = take(tmp_path)
    with closing(journal):
        folder.with_name(f"{REMOVED}{folder.name}").write_bytes(b"")
        leave(folder, journal)
    assert folder.exists()


def test_what_a_killed_engine_was_deleting_is_deleted_by_the_next_one(tmp_path: Path) -> None:
    removed = tmp_path / f"{REMOVED}{'0' * 32}"
    (tmp_path / ".snapshot").mkdir()
    with closing(Journal.open(removed)):
        pass
    folder, journal = take(tmp_path)
    journal.close()
    assert set(tmp_path.iterdir()) == {folder, tmp_path / ".snapshot"}


def test_a_damaged_journal_does_not_stop_an_engine(tmp_path: Path) -> None:
    damaged = tmp_path / "0"
    with closing(Journal.open(damaged)):
        pass
    (damaged / FILE).write_bytes(b"x" * 64)
    folder, journal = take(tmp_path)
    journal.close()
    assert folder != damaged and (damaged / FILE).read_bytes() == b"x" * 64
