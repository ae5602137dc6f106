"""Journals of engines that come and go: one root folder, in which each engine has its own folder.

An engine that starts takes over a journal that no process uses, and bills what its previous owner
had left to bill when it was lost. An engine that stops with everything billed deletes its folder.
So an unused folder is one whose engine was lost, and no more folders are made than engines run at
once.

All engines of the root need the same credential, because one may bill what was dispatched to
another. Locks are POSIX locks: network file systems support them too, and release them when a node
is lost.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import structlog

from inference.agent.journal.files import JournalFailed, JournalInUse
from inference.agent.journal.journal import Journal

log = structlog.get_logger(__name__)

REMOVED = ".gone-"
"""Prefix of a folder that is being deleted; nothing in it waits for the ledger."""


def take(root: Path) -> tuple[Path, Journal]:
    """Lock a journal folder in `root`, or make one; returns it and its open journal. Also deletes
    what engines that were killed in `leave` had yet to delete.

    Raises:
        JournalFailed: the disk fails or is full.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        left = sorted(one for one in root.iterdir() if one.is_dir() and one.name[0] != ".")
        for removed in root.glob(f"{REMOVED}*"):
            shutil.rmtree(removed, ignore_errors=True)
    except OSError as error:
        raise JournalFailed(f"cannot read {root}: {error}") from error
    for folder in left:
        try:
            journal = Journal.open(folder)
        except JournalInUse:
            continue
        except JournalFailed as error:  # left for an operator; it must not stop this engine
            log.error("journal_left", folder=str(folder), error=str(error))
            continue
        log.info("journal_taken_over", folder=str(folder), unbilled=journal.backlog)
        return folder, journal
    folder = root / uuid.uuid4().hex
    return folder, Journal.open(folder)


def leave(folder: Path, journal: Journal) -> None:
    """Delete the folder if nothing in it waits for the ledger. The journal is still open, so no
    other engine can take the folder meanwhile. A folder that cannot be deleted is logged."""
    if journal.backlog or journal.open_requests:
        log.warning("journal_left", folder=str(folder), unbilled=journal.backlog)
        return
    removed = folder.with_name(f"{REMOVED}{folder.name}")
    try:
        folder.rename(removed)  # atomic; `take` ignores names that begin with a dot
        shutil.rmtree(removed)
    except OSError as error:
        log.warning("journal_left", folder=str(folder), error=str(error))
