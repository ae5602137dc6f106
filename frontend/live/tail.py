"""The live tail of requests: announces to pages the requests that have ended.

Gateways announce a limited number of requests per API key at a time and only count the rest. A page
fetches the rows of the announced requests that it may see (`frontend.views.live`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from inference.gateway.measuring.outcomes import Refusal
from inference.link.accounts import LedgerEntry

MOST = 50
"""Requests of one key announced at a time: the newest, and a count of the others."""
ALL, OWN = "all", "own"


class TailLine(Protocol):
    """The part of a ledger line that is used here."""

    @property
    def entry(self) -> LedgerEntry: ...


class TailEnded(msgspec.Struct, array_like=True):
    """Requests of one key that ended: the marks of the newest, and a count of the others."""

    tenant_id: int
    key_id: int
    marks: list[str]
    more: int = 0


def by_key(lines: Iterable[TailLine]) -> Iterator[TailEnded]:
    """Group written ledger lines by API key."""
    found = ((line.entry.account, line.entry.id) for line in lines)
    return _grouped((at.tenant_id, at.key_id, mark(id, at.started_at)) for at, id in found)


def refused_by_key(refusals: Iterable[Refusal]) -> Iterator[TailEnded]:
    """Group requests that ended in an error by API key."""
    return _grouped((one.tenant_id, one.key_id, mark(one.id, one.started_at)) for one in refusals)


def _grouped(marks: Iterable[tuple[int, int, str]]) -> Iterator[TailEnded]:
    ended: dict[tuple[int, int], list[str]] = {}
    for tenant_id, key_id, one in marks:
        ended.setdefault((tenant_id, key_id), []).append(one)
    for (tenant_id, key_id), of_key in ended.items():
        more = max(0, len(of_key) - MOST)
        yield TailEnded(tenant_id, key_id, of_key[more:], more)


def listener(publish: Callable[[TailEnded], None]) -> Callable[[Sequence[TailLine]], None]:
    """A callback for `Ledger.on_written`."""

    def written(lines: Sequence[TailLine]) -> None:
        for ended in by_key(lines):
            publish(ended)

    return written


def mark(id: str, started_at: float) -> str:
    """A request's position in the console's list, as in its URLs: see `tenants.listing`."""
    return f"{round(started_at * 1_000_000)}-{id}"


def audience(key_ids: Iterable[int] | None) -> str:
    """The audience that is told of requests of these keys only; None: of all keys."""
    return ALL if key_ids is None else " ".join([OWN, *map(str, sorted(key_ids))])


def hears(audience: str, key_id: int) -> bool:
    """Whether this audience is told of requests of that key."""
    return audience == ALL or str(key_id) in audience.split()[1:]
