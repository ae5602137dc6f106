"""Orphans: answers that engines keep for any gateway that adopts them. No IO, no clock.

An engine announces its orphans to all gateways (`agent.kept_answers`). An orphan is accepted
only if a gateway dispatched it to that engine, with this key and model, which its signature proves.
Which client may have it is decided by the claim of its idempotency key, or by the label that its
gateway gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.fleet.engine_link import EngineLink
from inference.link.accounts import turn_of
from inference.link.session import Attempt
from inference.link.wire import Orphan

MAX_OF_AN_ENGINE = 4096
"""Orphans accepted of one engine; agents keep a quarter of that."""
MAX_TURNS = 32
"""An orphan in this turn or a higher one is ignored, so its request is generated anew."""


@dataclass(frozen=True, slots=True)
class Found:
    """An orphan, and the link of the engine that has it."""

    link: EngineLink
    orphan: Orphan


class Orphans:
    """The orphans of all engines of a gateway."""

    def __init__(self, dispatches: Dispatches) -> None:
        self._dispatches = dispatches
        self._by_link: dict[EngineLink, dict[Attempt, Orphan]] = {}
        self._news = asyncio.Event()

    def heard(self, link: EngineLink, orphans: Sequence[Orphan], gone: Sequence[Attempt]) -> None:
        """The engine announced these orphans, and that those in `gone` are orphans no longer."""
        known = self._by_link.setdefault(link, {})
        for attempt in gone:
            known.pop(attempt, None)
        room = max(0, MAX_OF_AN_ENGINE - len(known))
        for orphan in islice(orphans, room):
            if turn_of(orphan.attempt) < MAX_TURNS and self._is_dispatched(orphan, link):
                known[orphan.id, orphan.attempt] = orphan
        if not known:
            del self._by_link[link]
        self._news.set()
        self._news = asyncio.Event()

    def left(self, link: EngineLink) -> None:
        """Forget the orphans of a link that ended."""
        self._by_link.pop(link, None)

    def turns(self, key_id: int) -> dict[str, int]:
        """The requests of this API key that can be adopted: the highest turn of each, by id."""
        found: dict[str, int] = {}
        for one in self._all():
            if one.orphan.account.key_id == key_id:
                turn = turn_of(one.orphan.attempt)
                found[one.orphan.id] = max(turn, found.get(one.orphan.id, 0))
        return found

    def take(self, id: str) -> Found | None:
        """Take out the orphan with the highest attempt of this request; None if there is none."""
        found = [one for one in self._all() if one.orphan.id == id]
        return self._taken(max(found, key=lambda one: one.orphan.attempt, default=None))

    async def labelled(self, key_id: int, label: str, within_s: float) -> Found | None:
        """As `take`, for this API key and label; waits up to `within_s` for an engine to announce
        it."""
        try:
            async with asyncio.timeout(within_s):
                while (found := self._labelled(key_id, label)) is None:
                    await self._news.wait()
        except TimeoutError:
            return None
        return found

    def _labelled(self, key_id: int, label: str) -> Found | None:
        for one in self._all():
            if one.orphan.label == label and one.orphan.account.key_id == key_id:
                return self.take(one.orphan.id)
        return None

    def _taken(self, found: Found | None) -> Found | None:
        if found is not None:
            del self._by_link[found.link][found.orphan.id, found.orphan.attempt]
        return found

    def _all(self) -> Iterator[Found]:
        return (
            Found(link, orphan)
            for link, known in self._by_link.items()
            for orphan in known.values()
        )

    def _is_dispatched(self, orphan: Orphan, link: EngineLink) -> bool:
        attempt = orphan.id, orphan.attempt
        return self._dispatches.is_of(orphan.account, attempt, orphan.model, link.credential.id)
