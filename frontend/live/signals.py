"""Change detection for live pages, from what a gateway has in memory.

Pages are rendered elsewhere, from the database too, so a signal need not be exact: a false one
costs a page one request, a missed one leaves it stale for a while. Each method returns, for every
watched key, a value that differs whenever the state does. All in memory, on one event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from frontend.live.feeds import Key
from inference.gateway.measuring.history import History

Snapshot = Callable[[], Sequence[Mapping[str, Any]]]
"""Returns the connected engines, as `Hub.snapshot` does."""
Values = Mapping[Key, object]

MINUTE_S = 60.0
"""Window of per-minute limits: usage keeps falling for this long after a request."""
DAY_S = 86_400.0
LIMITS_S = 2.0
BATCHES_S = 2.0
ROLLOUTS_S = 3.0
HEALTH_S = 5.0
"""Gateways write the outcomes of requests every two seconds."""


class Signals:
    """`changed`, `began`, `ended` and `missed` record what happens; other methods report state."""

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        self._snapshot, self._history = snapshot, history
        self._changes: Counter[int] = Counter()
        """Number of changes by tenant id; 0 counts changes that affect all tenants."""
        self._used_at: dict[int, float] = {}
        """Unix time at which a request of a tenant last began or ended; 0 is for all tenants."""
        self._last_at = 0.0
        """The same of any tenant."""
        self._served: set[int] = set()
        """Ids of tenants that have had a request answered."""

    # --- What happens ----------------------------------------------------------------------------

    def changed(self, tenant_id: int | None) -> None:
        """The database announced a change of this tenant's data; None: of data of all tenants."""
        self._changes[tenant_id or 0] += 1

    def began(self, tenant_id: int, now: float) -> None:
        """Some gateway counted a request against this tenant's limits."""
        self._used_at[tenant_id] = self._last_at = now

    def ended(self, tenant_id: int, now: float) -> None:
        """A request of this tenant was written to the ledger, or was refused."""
        self._used_at[tenant_id] = self._last_at = now
        self._served.add(tenant_id)

    def missed(self, now: float) -> None:
        """Batches of other gateways were lost: requests of any tenant may have begun or ended."""
        self._used_at[0] = self._last_at = now
        self.changed(None)

    # --- What is different -----------------------------------------------------------------------

    def engines(self, keys: Sequence[Key], now: float) -> Values:
        """The engines and the tenant's adapters on them; and the current minute, since the page
        shows how long ago each engine connected."""
        serving = [
            (one["id"], one["base_model"], one["draining"], one["asleep"], one["connected_at"])
            for one in self._snapshot()
        ]
        held, minute = self._held(), now // 60
        return {key: (serving, held.get(key.slug), self._changes_of(key), minute) for key in keys}

    def fleet(self, keys: Sequence[Key], now: float) -> Values:
        """Everything that engines report, and their token rates."""
        return dict.fromkeys(keys, (self._snapshot(), self._history.rates(), now // 60))

    def figures(self, keys: Sequence[Key], now: float) -> Values:
        """What engines are doing now, without their counters."""
        names = ("id", "draining", "asleep", "running", "waiting", "queued", "kv_usage")
        done = [[one[name] for name in names] for one in self._snapshot()]
        return dict.fromkeys(keys, done)

    def history(self, keys: Sequence[Key], now: float) -> Values:
        """Time of the latest point in the history."""
        last_at = max((point.at for point in self._history.points()), default=None)
        return dict.fromkeys(keys, last_at)

    def rollouts(self, keys: Sequence[Key], now: float) -> Values:
        """Differs every few seconds: no gateway knows what a worker sees."""
        return dict.fromkeys(keys, now // ROLLOUTS_S)

    def batches(self, keys: Sequence[Key], now: float) -> Values:
        """As `rollouts`."""
        return dict.fromkeys(keys, now // BATCHES_S)

    def health(self, keys: Sequence[Key], now: float) -> Values:
        """When a request last began or ended, and the current minute, since the period moves."""
        minute = now // 60
        return {key: (self._last_of(key), minute) for key in keys}

    def _last_of(self, key: Key) -> float:
        if not key.tenant_id:
            return self._last_at
        return max(self._used_at.get(one, 0.0) for one in (0, key.tenant_id))

    def adapters(self, keys: Sequence[Key], now: float) -> Values:
        """A tenant's adapters and versions, and which of them are loaded on engines."""
        held = self._held()
        return {key: (held.get(key.slug), self._changes_of(key)) for key in keys}

    def steps(self, keys: Sequence[Key], now: float) -> Values:
        """What the first-run checklist depends on."""
        connected = bool(self._snapshot())
        return {
            key: (connected, key.tenant_id in self._served, self._changes_of(key)) for key in keys
        }

    def limits(self, keys: Sequence[Key], now: float) -> Values:
        """A tenant's limits, the usage of per-minute limits, and the current day."""
        day = now // DAY_S
        return {key: (self._changes_of(key), self._use_of(key, now), day) for key in keys}

    def _changes_of(self, key: Key) -> tuple[int, int]:
        return self._changes[key.tenant_id], self._changes[0]

    def _use_of(self, key: Key, now: float) -> float:
        """A value that differs on every call while usage is still falling."""
        used_at = self._last_of(key)
        return now if now - used_at <= MINUTE_S + LIMITS_S else used_at

    def _held(self) -> Mapping[str, list[tuple[str, str]]]:
        """(engine id, LoRA name) of everything loaded on engines, by tenant slug."""
        held: dict[str, list[tuple[str, str]]] = {}
        for engine_id, name in _residents(self._snapshot()):
            held.setdefault(name.partition("/")[0], []).append((engine_id, name))
        return held


def _residents(engines: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Sorted, since engines list adapters by last use, and a new order is not a change."""
    return sorted((one["id"], name) for one in engines for name in one["resident_adapters"])
