"""The result of a check, and what checks of all kinds share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from tests.labs.chaos.judging.facts import Counts, Entry, Facts

T = TypeVar("T")
K = TypeVar("K")


@dataclass(slots=True)
class Check:
    """One condition: what was compared, and the faults that were found."""

    title: str
    figures: str = ""
    faults: list[str] = field(default_factory=list)


def in_ledger(facts: Facts) -> list[Entry]:
    """All attempts in the ledger, billed or superseded."""
    return [*(event.entry for event in facts.events), *facts.superseded]


def by_id(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The rows grouped by `key`."""
    found: defaultdict[K, list[T]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def tokens(counts: Counts) -> str:
    """Formats token counts."""
    return (
        f"{counts.prompt_tokens:,} prompt ({counts.cached_tokens:,} cached) "
        f"and {counts.completion_tokens:,} output tokens"
    )
