"""Tells engines how much service the others gave each tenant, in one frame a second. No IO, no
clock.

Each engine reports once a second by how much the service of its tenants grew (`Stats.gained`), and
asks one gateway what the others gave (`Stats.asks`). So a gateway sends one frame per second to
each engine that asks, however many engines there are.

Rules
    1. Reported service is summed by tenant. At most once a second a round is closed, with the
       ROUND_TENANTS tenants that gained most and are not told yet. The others wait for a later
       round and keep growing: large gains are told at once, small ones a few seconds later, and
       everything once. So the size of a frame is bounded for any number of tenants.
    2. An engine is told a round without its own part.
    3. It is told the rounds closed since it last asked, at most ROUNDS_KEPT: an engine that joins,
       or was cut off for longer, owes and is owed nothing for the time before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest

from inference.link.wire import Others

ROUND_S = 1.0
ROUND_TENANTS = 256
"""Tenants in one round: 8 KB. Telling one engine takes 0.1 ms."""
ROUNDS_KEPT = 8
MAX_WAITING = 32_768
"""Tenants whose figures wait for a later round; beyond that those that gained least are forgotten.
10 MB if each is served by a few engines."""

Gains = dict[str, float]
"""By engine or by tenant, in tokens over weight."""


@dataclass(slots=True, eq=False)
class Listener:
    """One engine's link, and what was sent to it."""

    engine_id: str
    last_round: int | None = None
    """Number of the last round closed at the last answer to it; None: it did not ask then."""
    engines: int = 0
    """The number of engines in the last answer to it."""


@dataclass(slots=True)
class Round:
    """For each tenant in it, the service of all engines together and of each engine."""

    sums: Gains = field(default_factory=dict)
    parts: dict[str, Gains] = field(default_factory=dict)

    def add(self, engine_id: str, gained: Mapping[str, float]) -> None:
        """Add what an engine gave, by tenant."""
        for tenant, more in gained.items():
            if not more > 0:  # no sound agent reports that; also true of NaN
                continue
            self.sums[tenant] = self.sums.get(tenant, 0.0) + more
            parts = self.parts.setdefault(tenant, {})
            parts[engine_id] = parts.get(engine_id, 0.0) + more

    def most(self, count: int) -> list[str]:
        """The tenants that gained most."""
        return nlargest(count, self.sums, key=self.sums.__getitem__)

    def take(self, tenants: Iterable[str]) -> Round:
        """Remove these tenants, and return them as a round of their own."""
        taken = Round()
        for one in tenants:
            taken.sums[one], taken.parts[one] = self.sums.pop(one), self.parts.pop(one)
        return taken

    def without(self, engine_id: str) -> Gains:
        """What the other engines gave, by tenant."""
        given = {}
        for tenant, sum in self.sums.items():
            own = self.parts[tenant].get(engine_id, 0.0)
            if own < sum:
                given[tenant] = sum - own
        return given


class FleetService:
    """The service of the engines of one base model that are connected to this gateway."""

    def __init__(self) -> None:
        self._waiting = Round()
        self._rounds: deque[tuple[int, Round]] = deque(maxlen=ROUNDS_KEPT)
        """Closed rounds with their numbers."""
        self._closed, self._closed_at = 0, -ROUND_S
        self._engines: set[Listener] = set()

    def join(self, engine_id: str) -> Listener:
        """An engine has connected."""
        listener = Listener(engine_id)
        self._engines.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """An engine has disconnected; unknown listeners are ignored."""
        self._engines.discard(listener)

    def add_gains(self, listener: Listener, gained: Mapping[str, float], now: float) -> None:
        """An engine reported what it gave since its last report. `now` is in seconds."""
        self._waiting.add(listener.engine_id, gained)
        if now - self._closed_at >= ROUND_S:
            self._close(now)

    def answer(self, listener: Listener, *, asks: bool) -> Others | None:
        """What to tell an engine: with `asks` what the others served, else only how many engines
        there are. None if there is nothing new."""
        news: Gains = {}
        for number, round in self._rounds:
            if asks and listener.last_round is not None and number > listener.last_round:
                for tenant, more in round.without(listener.engine_id).items():
                    news[tenant] = news.get(tenant, 0.0) + more
        listener.last_round = self._closed if asks else None
        if not news and listener.engines == len(self._engines):
            return None
        listener.engines = len(self._engines)
        return Others(listener.engines, news)

    def _close(self, now: float) -> None:
        waiting = self._waiting
        if len(waiting.sums) > MAX_WAITING + ROUND_TENANTS:
            self._waiting = waiting.take(waiting.most(MAX_WAITING + ROUND_TENANTS))
            waiting = self._waiting
        self._closed, self._closed_at = self._closed + 1, now
        self._rounds.append((self._closed, waiting.take(waiting.most(ROUND_TENANTS))))
