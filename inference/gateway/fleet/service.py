"""What engines served, told to each other: of a second in one frame. No IO, no clock.

Each engine says once a second by how much the service of its tenants grew (`Stats.gained`), and
asks one gateway what the others gave (`Stats.asks`). So a gateway sends one frame a second for each
engine that asks, however many there are.

Rules
    1. What engines say is added up by tenant. Once a second at most a round is closed: it has the
       ROUND_TENANTS that gained most and were not told yet. The others wait for a later one and go
       on growing: what is much is told at once, what is little a few seconds later, and everything
       once. So a frame has a bound whatever the number of tenants.
    2. An engine hears of a round what is not its own.
    3. It hears the rounds closed since it asked last, ROUNDS_KEPT at most: one that comes, or was
       cut off for longer, owes and is owed nothing for what was before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest

from inference.link.wire import Others

ROUND_S = 1.0
ROUND_TENANTS = 256
"""Of one round: 8 KB. To tell an engine takes 0.1 ms."""
ROUNDS_KEPT = 8
MAX_WAITING = 32_768
"""Tenants whose figures wait for a later round; those that gained least are forgotten. 10 MB where
each is served by a few engines."""

Gains = dict[str, float]
"""By engine or by tenant, in tokens over weight."""


@dataclass(slots=True, eq=False)
class Listener:
    """One engine's link, and what it was told."""

    engine_id: str
    told: int | None = None
    """Rounds that had been closed when it was told last; None: it did not ask then."""
    engines: int = 0
    """How many it was told that there are."""


@dataclass(slots=True)
class Round:
    """Of each tenant in it what all engines gave, and what each of them did."""

    sums: Gains = field(default_factory=dict)
    parts: dict[str, Gains] = field(default_factory=dict)

    def add(self, engine_id: str, gained: Mapping[str, float]) -> None:
        """An engine gave so much more."""
        for tenant, more in gained.items():
            if not more > 0:  # nothing an agent says
                continue
            self.sums[tenant] = self.sums.get(tenant, 0.0) + more
            parts = self.parts.setdefault(tenant, {})
            parts[engine_id] = parts.get(engine_id, 0.0) + more

    def most(self, count: int) -> list[str]:
        """The tenants that gained most."""
        return nlargest(count, self.sums, key=self.sums.__getitem__)

    def take(self, tenants: Iterable[str]) -> Round:
        """These tenants, which are in here no longer."""
        taken = Round()
        for one in tenants:
            taken.sums[one], taken.parts[one] = self.sums.pop(one), self.parts.pop(one)
        return taken

    def without(self, engine_id: str) -> Gains:
        """What the others gave."""
        given = {}
        for tenant, sum in self.sums.items():
            own = self.parts[tenant].get(engine_id, 0.0)
            if own < sum:
                given[tenant] = sum - own
        return given


class FleetService:
    """Of the engines of one base model, as far as they are connected to this gateway."""

    def __init__(self) -> None:
        self._waiting = Round()
        self._rounds: deque[tuple[int, Round]] = deque(maxlen=ROUNDS_KEPT)
        """Closed ones with their numbers."""
        self._closed, self._closed_at = 0, -ROUND_S
        self._engines: set[Listener] = set()

    def join(self, engine_id: str) -> Listener:
        """An engine is connected."""
        listener = Listener(engine_id)
        self._engines.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """It is no longer; unknown ones are ignored."""
        self._engines.discard(listener)

    def heard(self, listener: Listener, gained: Mapping[str, float], now: float) -> None:
        """An engine served so much more since it was last heard. `now` is in seconds."""
        self._waiting.add(listener.engine_id, gained)
        if now - self._closed_at >= ROUND_S:
            self._close(now)

    def answer(self, listener: Listener, *, asks: bool) -> Others | None:
        """What to tell an engine that asks for what the others served, or only how many there are;
        None: it has heard all."""
        news: Gains = {}
        for number, round in self._rounds:
            if asks and listener.told is not None and number > listener.told:
                for tenant, more in round.without(listener.engine_id).items():
                    news[tenant] = news.get(tenant, 0.0) + more
        listener.told = self._closed if asks else None
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
