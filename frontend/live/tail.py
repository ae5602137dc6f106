"""The live tail of requests: the ledger says what it has written, pages are told which ended.

A gateway tells the others, a few for each key at a time, and counts the rest. A page fetches the
rows of those that it is told of, where it may see them (`frontend.views.live`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from inference.link.wire import LedgerEntry

MOST = 50
"""Requests of one key that are told at once; of more the newest, and how many others there were."""
ALL, OWN = "all", "own"


class Line(Protocol):
    """The part of a ledger's line that is looked at."""

    @property
    def entry(self) -> LedgerEntry: ...


class Ended(msgspec.Struct, array_like=True):
    """Requests of one key that ended: their marks, and how many others."""

    tenant_id: int
    key_id: int
    marks: list[str]
    more: int = 0


def by_key(lines: Iterable[Line]) -> Iterator[Ended]:
    """What the ledger has written, one for each key."""
    ended: dict[tuple[int, int], list[str]] = {}
    for line in lines:
        account = line.entry.account
        of_key = ended.setdefault((account.tenant_id, account.key_id), [])
        of_key.append(mark(line.entry.id, account.started_at))
    for (tenant_id, key_id), marks in ended.items():
        more = max(0, len(marks) - MOST)
        yield Ended(tenant_id, key_id, marks[more:], more)


def listener(publish: Callable[[Ended], None]) -> Callable[[Sequence[Line]], None]:
    """What `Ledger.on_written` calls."""

    def written(lines: Sequence[Line]) -> None:
        for ended in by_key(lines):
            publish(ended)

    return written


def mark(id: str, started_at: float) -> str:
    """A request as the console's addresses name its place in the list: see `requests.mark_of`."""
    return f"{round(started_at * 1_000_000)}-{id}"


def audience(key_ids: Iterable[int] | None) -> str:
    """Who hears of requests of these keys alone; None: of everybody's."""
    return ALL if key_ids is None else " ".join([OWN, *map(str, sorted(key_ids))])


def hears(audience: str, key_id: int) -> bool:
    """Whether this audience may know of a request of that key."""
    return audience == ALL or str(key_id) in audience.split()[1:]
