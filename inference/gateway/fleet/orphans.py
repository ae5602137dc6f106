"""Orphans: answers that engines keep for any gateway that adopts them. No IO, no clock.

An engine announces its orphans to all gateways (`agent.jobs.kept_answers`). An orphan is accepted
only if a gateway dispatched it to that engine, with this key and model, which its signature proves.
Which client may have it is decided by the claim of its idempotency key, or by the label that its
gateway gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.fleet.engine_link import EngineLink
from inference.link.accounts import turn_of
from inference.link.session import AttemptKey
from inference.link.wire import Orphan

MAX_OF_AN_ENGINE = 4096
"""Orphans accepted of one engine; agents keep a quarter of that."""
MAX_TURNS = 32
"""An orphan in this turn or a higher one is ignored, so its request is generated anew."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundOrphan:
    """An orphan, and the link of the engine that has it."""

    link: EngineLink
    orphan: Orphan

    @property
    def attempt(self) -> AttemptKey:
        return self.orphan.id, self.orphan.attempt


class Orphans:
    """The orphans of all engines of a gateway. What is looked up costs as much as the API key has
    orphans, however many others have."""

    def __init__(self, dispatches: Dispatches) -> None:
        self._dispatches = dispatches
        self._by_link: dict[EngineLink, dict[AttemptKey, FoundOrphan]] = {}
        self._by_key: dict[int, dict[FoundOrphan, None]] = {}
        """By the id of the API key."""
        self._news = asyncio.Event()

    def update(
        self, link: EngineLink, orphans: Sequence[Orphan], withdrawn: Sequence[AttemptKey]
    ) -> None:
        """The engine announced these orphans, and that those `withdrawn` are orphans no longer."""
        known = self._by_link.setdefault(link, {})
        for attempt in withdrawn:
            if (found := known.pop(attempt, None)) is not None:
                self._forget(found)
        room = max(0, MAX_OF_AN_ENGINE - len(known))
        for orphan in islice(orphans, room):
            if turn_of(orphan.attempt) < MAX_TURNS and self._is_dispatched(orphan, link):
                self._add(known, FoundOrphan(link, orphan))
        self._news.set()
        self._news = asyncio.Event()

    def left(self, link: EngineLink) -> None:
        """Forget the orphans of a link that ended."""
        for found in self._by_link.pop(link, {}).values():
            self._forget(found)

    def turns(self, key_id: int) -> dict[str, int]:
        """The requests of this API key that can be adopted: the highest turn of each, by id."""
        turns: dict[str, int] = {}
        for found in self._by_key.get(key_id, ()):
            turn = turn_of(found.orphan.attempt)
            turns[found.orphan.id] = max(turn, turns.get(found.orphan.id, 0))
        return turns

    def find(self, key_id: int, id: str) -> FoundOrphan | None:
        """The orphan with the highest attempt of this request of the API key; None if there is
        none."""
        found = [one for one in self._by_key.get(key_id, ()) if one.orphan.id == id]
        return max(found, key=lambda one: one.orphan.attempt, default=None)

    async def labelled(self, key_id: int, label: str, within_s: float) -> FoundOrphan | None:
        """As `find`, for this label; waits up to `within_s` for an engine to announce it."""
        try:
            async with asyncio.timeout(within_s):
                while (found := self._labelled(key_id, label)) is None:
                    await self._news.wait()
        except TimeoutError:
            return None
        return found

    def take(self, found: FoundOrphan) -> bool:
        """Take this orphan out, to adopt it; False if it is no longer there."""
        if found not in self._by_key.get(found.orphan.account.key_id, ()):
            return False
        del self._by_link[found.link][found.attempt]
        self._forget(found)
        return True

    def _labelled(self, key_id: int, label: str) -> FoundOrphan | None:
        for one in self._by_key.get(key_id, ()):
            if one.orphan.label == label:
                return self.find(key_id, one.orphan.id)
        return None

    def _add(self, known: dict[AttemptKey, FoundOrphan], found: FoundOrphan) -> None:
        if (before := known.get(found.attempt)) is not None:
            self._forget(before)
        known[found.attempt] = found
        self._by_key.setdefault(found.orphan.account.key_id, {})[found] = None

    def _forget(self, found: FoundOrphan) -> None:
        """Remove what was removed from its link also from its API key."""
        key_id = found.orphan.account.key_id
        del self._by_key[key_id][found]
        if not self._by_key[key_id]:
            del self._by_key[key_id]

    def _is_dispatched(self, orphan: Orphan, link: EngineLink) -> bool:
        attempt = orphan.id, orphan.attempt
        return self._dispatches.is_of(orphan.account, attempt, orphan.model, link.credential.id)
