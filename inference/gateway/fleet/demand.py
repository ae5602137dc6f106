"""The demand for each pool over all gateways, by which engines are scaled. Sans-IO.

Every gateway sees every engine, so for what engines run the highest figure of any gateway counts: a
gateway that has just started, or lost a link, sees less. Requests that wait at a gateway because no
engine takes them are known only to that gateway, so these are summed. A gateway that died no longer
reports, and the requests that it held are gone with their connections.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from inference.errors import Unavailable
from inference.gateway.routing.engine_state import EngineState
from inference.gateway.routing.engines import RETRY_AFTER_S

MAX_REFUSALS = 10_000
"""Refusals remembered per pool."""
RATE_S = 60.0
"""Window over which the rate of ended requests is measured."""
STALE_S = 10.0
"""After this time without a report the requests held by other gateways are unknown. Then no figure
is better than a low one that would stop engines."""
SETTLED_S = 15.0
"""For this long after its start a gateway without others may lack engines: they reconnect within
it."""


class Demand(msgspec.Struct, frozen=True):
    """The demand for one pool at a moment, in requests."""

    engines: int = 0
    """Engines that take new requests."""
    running: int = 0
    queued: int = 0
    held: int = 0
    unmet: int = 0

    @property
    def total(self) -> int:
        """The requests that want an engine now."""
        return self.running + self.queued + self.held + self.unmet


FIGURES: Mapping[str, str] = {
    "demand": "Requests that need an engine of the pool: running, queued, held and unmet.",
    "engines": "Engines of the pool that accept new requests.",
    "running": "Requests running on these engines.",
    "queued": "Requests in the queues of these engines.",
    "held": "Requests held at gateways because no engine can take them.",
    "unmet": f"Requests refused in the last {RETRY_AFTER_S:.0f} s for want of an engine.",
    "expected_wait_seconds": (
        "Expected wait of a new request at the pace of the last minute; absent if no "
        "request ended in it."
    ),
}
"""The figures of a pool, by name, with their help texts; the metrics are `lorikeet_pool_...`."""


class Refusals:
    """Requests that were refused because no engine takes them, by pool. Each counts for as long as
    its client was told to wait, so that a client that retries counts once."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}

    def note(self, pool: str, now: float) -> None:
        """A request was refused."""
        self._at.setdefault(pool, deque(maxlen=MAX_REFUSALS)).append(now)

    def counts(self, now: float) -> Counter[str]:
        """The refusals that still count, by pool."""
        for pool, times in list(self._at.items()):
            while times and now - times[0] > RETRY_AFTER_S:
                times.popleft()
            if not times:
                del self._at[pool]
        return Counter({pool: len(times) for pool, times in self._at.items()})


def demand_of(
    engines: Iterable[EngineState], held: Mapping[str, int], refused: Mapping[str, int]
) -> dict[str, Demand]:
    """The demand that one gateway sees, by pool. Draining engines don't count: what runs on them
    ends there and needs no other engine. Nor do overflow and prefill engines: it does not scale
    them."""
    running, queued, taking = Counter[str](), Counter[str](), Counter[str]()
    for engine in engines:
        if engine.info.serves and not engine.draining:
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
    """The views of several gateways combined."""
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


class CompletionRate:
    """The rate at which requests of each pool end, from engines' counters."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}
        self._ended = Counter[str]()
        self._samples: deque[tuple[float, Counter[str]]] = deque()

    def note(self, engines: Iterable[EngineState], now: float) -> None:
        """Add a sample of the counters of the connected own engines."""
        counted = {}
        for engine in engines:
            if not engine.info.serves:
                continue
            counted[engine.id] = ended = engine.stats.journaled.requests
            self._ended[engine.info.name] += max(0, ended - self._counted.get(engine.id, ended))
        self._counted = counted
        self._samples.append((now, self._ended.copy()))
        while now - self._samples[0][0] > RATE_S:
            self._samples.popleft()

    def wait_s(self, pool: str, demand: Demand) -> float | None:
        """Seconds until everything that waits now has begun; None if no rate is known."""
        waiting = demand.queued + demand.held + demand.unmet
        if not waiting:
            return 0.0
        if not self._samples:
            return None
        (since, first), (now, last) = self._samples[0], self._samples[-1]
        ended = last[pool] - first[pool]
        return waiting * (now - since) / ended if ended else None


class FleetDemand:
    """The demand for each pool, from this gateway and all others together."""

    def __init__(self, own: Callable[[], Mapping[str, Demand]], now: float) -> None:
        """`own` returns what this gateway sees."""
        self.own = own
        self.completion_rate = CompletionRate()
        self._others: list[Mapping[str, Demand]] = []
        self._started_at, self._others_at = now, -STALE_S

    def set_others(self, others: Iterable[Mapping[str, Demand]], now: float) -> None:
        """Replace the views of the other live gateways."""
        self._others, self._others_at = list(others), now

    def pools(self, now: float) -> dict[str, Demand]:
        """The demand by base model.

        Raises:
            Unavailable: this gateway has just started, or does not know what the others see.
        """
        if now - self._others_at > STALE_S:
            raise Unavailable(
                "The demand at the other gateways is currently unknown.", retry_after_s=STALE_S
            )
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
        """The figures of one pool with this demand."""
        figures: dict[str, float] = {"demand": demand.total, **msgspec.structs.asdict(demand)}
        wait_s = self.completion_rate.wait_s(pool, demand)
        return figures if wait_s is None else figures | {"expected_wait_seconds": wait_s}
