"""What engines report of requests that ended: for the ledger, or for quarantine.

An engine bills only what a gateway dispatched to it: each entry carries the signature of its
dispatch (`dispatches`). What does not fit that is kept apart, and the engine told that it is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import structlog

from inference.errors import ProtocolViolation
from inference.gateway.fleet.dispatches import Dispatches, Mismatch
from inference.gateway.fleet.engine_link import EngineLink
from inference.grants import Recorder, Source
from inference.link import wire
from inference.link.wire import LedgerEntry

log = structlog.get_logger(__name__)

JOURNAL = re.compile(r"[!-~]{1,64}")
"""What the ledger has room for."""

MAX_ENTRIES = 1_000
"""Of one report, twice as many as agents send: to check them takes the loop 5 ms."""


class Intake:
    """Takes all reports of one gateway's engines."""

    def __init__(
        self,
        recorder: Recorder,
        dispatches: Dispatches,
        reported: Callable[[LedgerEntry], None],
    ) -> None:
        """`reported` is told of each entry that is billed."""
        self.quarantined = 0
        """Entries that were not what a gateway dispatched to their engines."""
        self._recorder, self._dispatches, self._reported = recorder, dispatches, reported

    def take(self, link: EngineLink, journal: str, entries: Sequence[LedgerEntry]) -> None:
        """Requests ended, by an engine's journal: write the ledger, then tell the engine so. What
        no gateway dispatched to it is quarantined.

        Raises:
            ProtocolViolation: no journal has this name, or it is more than a report holds.
        """
        if JOURNAL.fullmatch(journal) is None:
            raise ProtocolViolation("this is not the name of a journal")
        if len(entries) > MAX_ENTRIES:
            raise ProtocolViolation(f"a report has {MAX_ENTRIES} entries at most")

        def written(attempts: Sequence[tuple[str, int]]) -> None:
            link.post(wire.UsageAck([], list(attempts)))

        sound, suspects = self._sorted(link, entries)
        for entry in sound:
            self._reported(entry)
        if sound:
            self._recorder.record(link.engine.id, journal, sound, written)
        if suspects:
            source = Source(link.engine.id, link.credential.id, journal)
            self._recorder.quarantine(source, suspects, written)

    def _sorted(
        self, link: EngineLink, entries: Sequence[LedgerEntry]
    ) -> tuple[list[LedgerEntry], list[tuple[LedgerEntry, Mismatch]]]:
        """What is to be billed, and what is not, with why."""
        sound: list[LedgerEntry] = []
        suspects: list[tuple[LedgerEntry, Mismatch]] = []
        for entry in entries:
            mismatch = self._dispatches.mismatch(entry, link.credential.id)
            if mismatch is None:
                sound.append(entry)
            else:
                suspects.append((entry, mismatch))
        if suspects:
            self.quarantined += len(suspects)
            log.error(
                "usage_quarantined",
                engine=link.engine.id,
                credential=link.credential.name,
                entries=len(suspects),
                reasons=sorted({mismatch for _, mismatch in suspects}),
            )
        return sound, suspects
