"""Journals of engines that come and go: one folder for all, in which each has its own.

An engine that starts takes over one that nobody uses: what its last owner had still to bill when it
was lost, this one bills. An engine that has billed all deletes its own at the end. So what lies
there unused is what was lost, and no more folders are made than engines run at once.

All engines of the folder need the same credential, as what one was given another one bills. Locks
are POSIX ones, which network file systems keep as well, and give back when a node is lost.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import structlog

from inference.agent.journal.files import JournalFailed, JournalInUse
from inference.agent.journal.journal import Journal

log = structlog.get_logger(__name__)


def take(root: Path) -> tuple[Path, Journal]:
    """A folder of this root and its journal, for this process alone.

    Raises:
        JournalFailed: the disk fails or is full.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        left = sorted(one for one in root.iterdir() if one.is_dir() and one.name[0] != ".")
    except OSError as error:
        raise JournalFailed(f"cannot read {root}: {error}") from error
    for folder in left:
        try:
            journal = Journal.open(folder)
        except JournalInUse:
            continue
        except JournalFailed as error:  # it is somebody's to look at, and keeps no engine away
            log.error("journal_left", folder=str(folder), error=str(error))
            continue
        log.info("journal_taken_over", folder=str(folder), unbilled=journal.backlog)
        return folder, journal
    folder = root / uuid.uuid4().hex
    return folder, Journal.open(folder)


def leave(folder: Path, journal: Journal) -> None:
    """Delete the folder if nothing in it waits for the ledger; the journal is still open, so nobody
    else takes it meanwhile."""
    if journal.backlog or journal.open_requests:
        log.warning("journal_left", folder=str(folder), unbilled=journal.backlog)
        return
    gone = folder.with_name(f".{folder.name}")
    folder.rename(gone)  # at once, for whoever looks for one
    shutil.rmtree(gone, ignore_errors=True)
