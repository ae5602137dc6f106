"""The ledger, in which the usage of ended requests is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inference.link.accounts import LedgerEntry
from inference.link.engine_info import EngineStats

Written = Callable[[Sequence[tuple[str, int]]], None]
"""Called on the event loop with entries (request id, attempt) that are durable in the ledger."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a usage report: an engine, the id of its credential, and its journal."""

    engine_id: str
    credential: int
    journal: str


class Recorder(Protocol):
    """Writes the ledger, off the token path."""

    def record(
        self, engine_id: str, journal: str, entries: Sequence[LedgerEntry], written: Written
    ) -> None:
        """Write the entries and then call `written`; returns at once, never blocks, never raises.

        An entry that was written before counts as written. `written` is not called for entries that
        this process cannot write before it ends: the engine sends them again.
        """
        ...

    def quarantine(
        self, source: Source, suspects: Sequence[tuple[LedgerEntry, str]], written: Written
    ) -> None:
        """Store entries that must not be billed, each with the reason, until an operator decides;
        then call `written` with those stored. Returns at once, never blocks, never raises.
        """
        ...

    def totals(self, engine_id: str, stats: EngineStats) -> None:
        """Record the totals of the engine's journal, for reconciliation. Returns at once."""
        ...
