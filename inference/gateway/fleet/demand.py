"""What is asked of each pool over all gateways, which is what engines are scaled by. Sans-IO.

Every gateway sees every engine, so of what engines run the most that any gateway sees counts: one
that has just started, or lost a link, sees less. What waits at a gateway for want of an engine only
that gateway knows, so that is added up. A gateway that dies is no longer heard, and what it held
is gone with its clients.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from inference.errors import Unavailable
from inference.gateway.routing.engine_state import EngineState
from inference.gateway.routing.engines import RETRY_AFTER_S

MAX_REFUSALS = 10_000
"""Of one pool that are remembered."""
PACE_S = 60.0
"""Over this time it is measured how many requests end."""
STALE_S = 10.0
"""After this time without a word of the other gateways nobody knows what they hold: then no figure
is better than one that stops engines."""
SETTLED_S = 15.0
"""So long after its start a gateway that is alone may lack engines, which dial again within it."""


class Demand(msgspec.Struct, frozen=True):
    """What is asked of one pool at a moment, in requests."""

    engines: int = 0
    """That take new requests."""
    running: int = 0
    queued: int = 0
    held: int = 0
    unmet: int = 0

    @property
    def total(self) -> int:
        """The requests that want an engine now."""
        return self.running + self.queued + self.held + self.unmet


FIGURES: Mapping[str, str] = {
    "demand": "Requests that want an engine of the pool: running, queued, held and unmet.",
    "engines": "Engines of the pool that take new requests.",
    "running": "Requests that run on them.",
    "queued": "Requests in their queues.",
    "held": "Requests that wait at gateways for want of an engine.",
    "unmet": f"Requests refused in the last {RETRY_AFTER_S:.0f} s for want of an engine.",
    "expected_wait_seconds": "How long a request that comes now will wait, at the pace of the last "
    "minute; not there if none ended.",
}
"""What is told of a pool, by name; as metrics they are `lorikeet_pool_...`."""


class Refusals:
    """Requests that were refused for want of an engine, by pool. They count for as long as their
    clients were told to wait: one that comes back counts once."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}

    def note(self, pool: str, now: float) -> None:
        """One was refused."""
        self._at.setdefault(pool, deque(maxlen=MAX_REFUSALS)).append(now)

    def counts(self, now: float) -> Counter[str]:
        """Those that count, by pool."""
        for pool, times in list(self._at.items()):
            while times and now - times[0] > RETRY_AFTER_S:
                times.popleft()
            if not times:
                del self._at[pool]
        return Counter({pool: len(times) for pool, times in self._at.items()})


def seen(
    engines: Iterable[EngineState], held: Mapping[str, int], refused: Mapping[str, int]
) -> dict[str, Demand]:
    """What one gateway sees, by pool. What runs on a draining engine ends there: it asks nothing of
    the others."""
    running, queued, taking = Counter[str](), Counter[str](), Counter[str]()
    for engine in engines:
        if not engine.draining:
            pool, stats = engine.info.name, engine.stats
            reported = stats.running + stats.waiting
            running[pool] += max(reported, engine.dispatched - stats.queued)
            queued[pool] += stats.queued
            taking[pool] += 1
    return {
        pool: Demand(
            taking[pool], running[pool], queued[pool], held.get(pool, 0), refused.get(pool, 0)
        )
        for pool in {*taking, *held, *refused}
    }


def together(views: Iterable[Mapping[str, Demand]]) -> dict[str, Demand]:
    """What these gateways see together."""
    pools: dict[str, Demand] = {}
    for view in views:
        for pool, one in view.items():
            other = pools.get(pool, Demand())
            pools[pool] = Demand(
                engines=max(one.engines, other.engines),
                running=max(one.running, other.running),
                queued=max(one.queued, other.queued),
                held=one.held + other.held,
                unmet=one.unmet + other.unmet,
            )
    return pools


class Pace:
    """How many requests of each pool end in a second, from what engines count."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}
        self._ended = Counter[str]()
        self._samples: deque[tuple[float, Counter[str]]] = deque()

    def note(self, engines: Iterable[EngineState], now: float) -> None:
        """The engines that are connected now, with what they have counted."""
        counted = {}
        for engine in engines:
            counted[engine.id] = ended = engine.stats.journaled.requests
            self._ended[engine.info.name] += max(0, ended - self._counted.get(engine.id, ended))
        self._counted = counted
        self._samples.append((now, self._ended.copy()))
        while now - self._samples[0][0] > PACE_S:
            self._samples.popleft()

    def wait_s(self, pool: str, demand: Demand) -> float | None:
        """How long until what waits has begun; None where nothing tells."""
        waiting = demand.queued + demand.held + demand.unmet
        if not waiting:
            return 0.0
        if not self._samples:
            return None
        (since, first), (now, last) = self._samples[0], self._samples[-1]
        ended = last[pool] - first[pool]
        return waiting * (now - since) / ended if ended else None


class FleetDemand:
    """What is asked of each pool, as this gateway and all others know it together."""

    def __init__(self, own: Callable[[], Mapping[str, Demand]], now: float) -> None:
        """`own` tells what this gateway sees."""
        self.own = own
        self.pace = Pace()
        self._others: list[Mapping[str, Demand]] = []
        self._started_at, self._heard_at = now, -STALE_S

    def heard(self, others: Iterable[Mapping[str, Demand]], now: float) -> None:
        """The other live gateways see this."""
        self._others, self._heard_at = list(others), now

    def pools(self, now: float) -> dict[str, Demand]:
        """By base model.

        Raises:
            Unavailable: this gateway can't know.
        """
        if now - self._heard_at > STALE_S:
            raise Unavailable("What other gateways hold is not known now.", retry_after_s=STALE_S)
        own = self.own()
        if not self._others and not own and now - self._started_at < SETTLED_S:
            raise Unavailable("This gateway has just started.", retry_after_s=SETTLED_S)
        return together([own, *self._others])

    def figures(self, now: float) -> dict[str, dict[str, float]]:
        """The figures of each pool, by the names of `FIGURES`.

        Raises:
            Unavailable: as `pools`.
        """
        return {pool: self.figures_of(pool, one) for pool, one in self.pools(now).items()}

    def figures_of(self, pool: str, demand: Demand) -> dict[str, float]:
        """Those of one pool, of which this is known."""
        figures: dict[str, float] = {"demand": demand.total, **msgspec.structs.asdict(demand)}
        wait_s = self.pace.wait_s(pool, demand)
        return figures if wait_s is None else figures | {"expected_wait_seconds": wait_s}
