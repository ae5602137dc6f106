"""Takes engines' usage reports of ended requests, for the ledger or for quarantine.

An engine can bill only what a gateway dispatched to it: each entry carries the signature of its
dispatch (`dispatches`). Entries that don't match are quarantined; the engine gets an
acknowledgement for these too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import structlog

from inference.errors import ProtocolViolation
from inference.gateway.fleet.dispatches import Dispatches, Mismatch
from inference.gateway.fleet.engine_link import EngineLink
from inference.interfaces.ledger import Recorder, Source
from inference.link import wire
from inference.link.accounts import LedgerEntry

log = structlog.get_logger(__name__)

JOURNAL = re.compile(r"[!-~]{1,64}")
"""The names that fit in the ledger."""

MAX_ENTRIES = 1_000
"""Entries of one report, twice as many as agents send; checking them takes the event loop 5 ms."""


class Intake:
    """Takes all usage reports of one gateway's engines."""

    def __init__(
        self,
        recorder: Recorder,
        dispatches: Dispatches,
        reported: Callable[[LedgerEntry], None],
    ) -> None:
        """`reported` is called with each entry that is billed."""
        self.quarantined = 0
        """Entries that did not match what a gateway dispatched to their engine."""
        self._recorder, self._dispatches, self._reported = recorder, dispatches, reported

    def take(self, link: EngineLink, journal: str, entries: Sequence[LedgerEntry]) -> None:
        """Write an engine's report of ended requests to the ledger, then acknowledge it. Entries
        that no gateway dispatched to the engine are quarantined.

        Raises:
            ProtocolViolation: the journal's name is invalid, or the report has too many entries.
        """
        if JOURNAL.fullmatch(journal) is None:
            raise ProtocolViolation("the journal's name is invalid")
        if len(entries) > MAX_ENTRIES:
            raise ProtocolViolation(f"a report can have at most {MAX_ENTRIES} entries")

        def written(attempts: Sequence[tuple[str, int]]) -> None:
            link.post(wire.UsageAck(list(attempts)))

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
        """The entries to bill, and those not to bill, each with the reason."""
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
