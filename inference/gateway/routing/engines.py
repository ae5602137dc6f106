"""The engines to choose from, and which of them can run a request. No IO, no clock.

Engines of one base model may differ: during a rollout one takes adapters of rank 64 and another of
rank 16, or only one has a tool parser. A request goes only to an engine that can run it. If none
can, it depends on what is missing. If the operator's fleet lacks it (an engine, a rank, a module,
an operation), the error is `NoEngine`, which may be temporary. If the client asked for something
that no engine of this base model offers (a longer context, tools), the request goes to an engine
all the same, whose error names the field and the limit. Only what models of this sort never do
(chat, for an embedding model) is refused at once (`Engines.permanent_refusal`).

What an engine can do depends only on its *pool*, and there are few pools. So decisions look at
pools, and cache the list of engines for each set of pools, and the nearest engines of each home.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inference.errors import InvalidRequest, NoEngine
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.operations.registry import OPERATIONS
from inference.pools import Revisions

RETRY_AFTER_S = 15.0
"""A lost engine is back after its start-up time, about this long on a small machine."""

MAX_HOMES = 4096
"""Cached homes, 0.7 MB; beyond that the cache is cleared."""
_ODD = 0x9E37_79B9_7F4A_7C15
_64_BITS = (1 << 64) - 1


class Able(list[EngineState]):
    """Engines that can all run a request. Never mutated."""

    def __init__(self, engines: Iterable[EngineState]) -> None:
        super().__init__(engines)
        self._nearest: dict[int, list[EngineState]] = {}
        """Nearest engines by home, as many as were asked for."""

    def nearest(self, home: int, count: int) -> list[EngineState]:
        """The first `count` engines in the order of this home (`Needs.home`)."""
        nearest = self._nearest.get(home)
        if nearest is None or len(nearest) < min(count, len(self)):
            by_rank = {(home ^ engine.number) * _ODD & _64_BITS: engine for engine in self}
            nearest = [by_rank[rank] for rank in sorted(by_rank, reverse=True)[:count]]
            if len(self._nearest) >= MAX_HOMES:
                self._nearest.clear()
            self._nearest[home] = nearest
        return nearest[:count]


class Engines:
    """A fixed list of engines without those that drain. Make a new one when an engine joins, leaves
    or begins to drain."""

    def __init__(self, engines: Iterable[EngineState]) -> None:
        self._engines = [engine for engine in engines if not engine.draining]
        self._pools = {engine.pool: engine for engine in self._engines}
        """One engine of each pool."""
        self._of_pools: dict[Revisions, Able] = {}

    def __iter__(self) -> Iterator[EngineState]:
        return iter(self._engines)

    def able(self, needs: Needs, revisions: Revisions | None = None) -> Able:
        """The engines that can run the request, of these revisions or of any; at least one.

        Raises:
            NoEngine: there is none.
        """
        name = needs.base_model
        serving = [
            engine
            for engine in self._pools.values()
            if engine.info.name == name and (revisions is None or engine.pool in revisions)
        ]
        if not serving:
            raise _nobody(name)
        able = [engine for engine in serving if not any(engine.lacks(needs))]
        if not able:
            raise NoEngine(_lacking(serving, needs), retry_after_s=RETRY_AFTER_S)
        pools = frozenset([engine.pool for engine in able])
        if (found := self._of_pools.get(pools)) is None:
            found = Able(engine for engine in self._engines if engine.pool in pools)
            self._of_pools[pools] = found
        return found

    def revisions(self, needs: Needs) -> Revisions | None:
        """The revisions that should run a request, None if any may. These are the revisions of its
        first tier with an engine that can run it; of these, the ones that offer what the client
        asked for, or all if none does. Load is no reason to use another tier.

        Raises:
            NoEngine: no engine of any tier is connected.
        """
        tier = None if needs.tiers is None else self._tier(needs)
        if len(self._pools) < 2:
            return tier
        able = [
            engine
            for engine in self._pools.values()
            if engine.info.name == needs.base_model
            and (tier is None or engine.pool in tier)
            and not any(engine.lacks(needs))
        ]
        offering = frozenset([engine.pool for engine in able if engine.offers(needs)])
        return offering or tier

    def _tier(self, needs: Needs) -> Revisions:
        """The first of a request's tiers with an engine that can run it; if none can, the first
        with any engine.

        Raises:
            NoEngine: no engine of any tier is connected.
        """
        engines = self._pools.values()
        there = [tier for tier in needs.tiers or () if not self._pools.keys().isdisjoint(tier)]
        if len(there) > 1:
            able = {engine.pool for engine in engines if not any(engine.lacks(needs))}
            there = [tier for tier in there if not able.isdisjoint(tier)] or there
        if there:
            return there[0]
        name = needs.base_model
        if needs.adapter is None or all(engine.info.name != name for engine in engines):
            raise _nobody(name)
        raise NoEngine(
            f"This adapter has not yet been tested on the engines that serve `{name}`.",
            retry_after_s=RETRY_AFTER_S,
        )

    def permanent_refusal(self, needs: Needs) -> InvalidRequest | None:
        """Why no engine of this base model will ever run a request: models of this sort don't
        support the operation. None if one may."""
        name = needs.base_model
        infos = [engine.info for engine in self._pools.values() if engine.info.name == name]
        done = frozenset[str]().union(*(info.operations for info in infos))
        alike = OPERATIONS.alike(needs.operation)
        if not infos or not alike or not alike.isdisjoint(done):
            return None
        offered = ", ".join(one.path for one in OPERATIONS if one.name in done)
        if not offered:  # what they do is newer than this gateway
            return None
        return InvalidRequest(
            f"`{name}` supports only {offered}: use another model for this request.", param="model"
        )


def _nobody(base_model: str) -> NoEngine:
    return NoEngine(
        f"No engine that serves `{base_model}` is connected.", retry_after_s=RETRY_AFTER_S
    )


def _lacking(engines: list[EngineState], needs: Needs) -> str:
    """The error message, naming what the engine that lacks the fewest things lacks."""
    least = min((list(engine.lacks(needs)) for engine in engines), key=len)
    return (
        f"No engine that serves `{needs.base_model}` can run this request: it needs "
        f"{' and '.join(least)}."
    )
