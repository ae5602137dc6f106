"""One thing that must hold, and what the checks of all kinds share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from tests.chaos.judging.facts import Counts, Entry, Facts

T = TypeVar("T")
K = TypeVar("K")


@dataclass(slots=True)
class Check:
    """One thing that must hold: what was compared, and what is wrong."""

    title: str
    figures: str = ""
    faults: list[str] = field(default_factory=list)


def in_ledger(facts: Facts) -> list[Entry]:
    """All attempts that it has, billed or superseded."""
    return [*(event.entry for event in facts.events), *facts.superseded]


def by_id(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The rows by this of each."""
    found: defaultdict[K, list[T]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def tokens(counts: Counts) -> str:
    """As figures."""
    return (
        f"{counts.prompt_tokens:,} prompt ({counts.cached_tokens:,} cached) "
        f"and {counts.completion_tokens:,} output tokens"
    )
