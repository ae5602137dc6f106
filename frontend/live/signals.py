"""What a gateway knows of the things that pages show: enough to say that one may have changed.

Pages are rendered elsewhere, from the database too, so a signal need not be exact: one too many
costs a page a request, one too few leaves it as it was. Each method gives for every watched key a
value that is another one when the state is. All in memory, on one event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from frontend.live.feeds import Key
from inference.gateway.history import History

Snapshot = Callable[[], Sequence[Mapping[str, Any]]]
"""The connected engines, as `Hub.snapshot` tells them."""
Values = Mapping[Key, object]

MINUTE_S = 60.0
"""Limits of a minute count so far back: what is used of them falls for so long after a request."""
DAY_S = 86_400.0
LIMITS_S = 2.0


class Signals:
    """Told what happens (`changed`, `began`, `ended`), asked what is different (the others)."""

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        self._snapshot, self._history = snapshot, history
        self._changes: Counter[int] = Counter()
        """By tenant; 0 is everybody's."""
        self._used_at: dict[int, float] = {}
        """When a request of a tenant last began or ended, unix time; 0 is everybody's."""
        self._served: set[int] = set()
        """Tenants that had a request."""

    # --- What happens ----------------------------------------------------------------------------

    def changed(self, tenant_id: int | None) -> None:
        """The database told that something of this tenant has changed; None: of anybody's."""
        self._changes[tenant_id or 0] += 1

    def began(self, tenant_id: int, now: float) -> None:
        """A request of this tenant is counted in its limits, on some gateway."""
        self._used_at[tenant_id] = now

    def ended(self, tenant_id: int, now: float) -> None:
        """A request of this tenant is in the ledger."""
        self._used_at[tenant_id] = now
        self._served.add(tenant_id)

    def missed(self, now: float) -> None:
        """Requests of anybody's may have begun and ended on other gateways."""
        self._used_at[0] = now
        self.changed(None)

    # --- What is different -----------------------------------------------------------------------

    def engines(self, keys: Sequence[Key], now: float) -> Values:
        """The engines that serve a tenant and what they hold of it; the minute, for the page says
        how long ago they came."""
        serving = [
            (one["id"], one["base_model"], one["draining"], one["connected_at"])
            for one in self._snapshot()
        ]
        held, minute = self._held(), now // 60
        return {key: (serving, held.get(key.slug), self._changes_of(key), minute) for key in keys}

    def fleet(self, keys: Sequence[Key], now: float) -> Values:
        """All that engines say of themselves, and how fast they are."""
        return dict.fromkeys(keys, (self._snapshot(), self._history.rates(), now // 60))

    def figures(self, keys: Sequence[Key], now: float) -> Values:
        """What engines do at the moment, without what they have counted."""
        names = ("id", "draining", "running", "waiting", "queued", "kv_usage")
        done = [[one[name] for name in names] for one in self._snapshot()]
        return dict.fromkeys(keys, done)

    def history(self, keys: Sequence[Key], now: float) -> Values:
        """The last point of the past."""
        last_at = max((point.at for point in self._history.points()), default=None)
        return dict.fromkeys(keys, last_at)

    def adapters(self, keys: Sequence[Key], now: float) -> Values:
        """A tenant's adapters and versions, and which of them engines hold."""
        held = self._held()
        return {key: (held.get(key.slug), self._changes_of(key)) for key in keys}

    def steps(self, keys: Sequence[Key], now: float) -> Values:
        """What the first-run checklist is about."""
        connected = bool(self._snapshot())
        return {
            key: (connected, key.tenant_id in self._served, self._changes_of(key)) for key in keys
        }

    def limits(self, keys: Sequence[Key], now: float) -> Values:
        """A tenant's limits, what is used of those of a minute, and the day."""
        day = now // DAY_S
        return {key: (self._changes_of(key), self._use_of(key, now), day) for key in keys}

    def _changes_of(self, key: Key) -> tuple[int, int]:
        return self._changes[key.tenant_id], self._changes[0]

    def _use_of(self, key: Key, now: float) -> float:
        """Another one each time for as long as what is used falls."""
        used_at = max(self._used_at.get(one, 0.0) for one in (0, key.tenant_id))
        return now if now - used_at <= MINUTE_S + LIMITS_S else used_at

    def _held(self) -> Mapping[str, list[tuple[str, str]]]:
        """What engines hold, by the slug of its tenant."""
        held: dict[str, list[tuple[str, str]]] = {}
        for engine_id, name in _residents(self._snapshot()):
            held.setdefault(name.partition("/")[0], []).append((engine_id, name))
        return held


def _residents(engines: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Sorted: the order in which an engine used them last is no change."""
    return sorted((one["id"], name) for one in engines for name in one["resident_adapters"])
