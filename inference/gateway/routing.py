"""Which engine gets a request. No sockets, no loop: engines and their states in, a choice out.

An engine that already holds the adapter goes before one that would have to load it, unless its
queue is so much longer that loading is the shorter wait; among equals the least loaded goes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from inference.errors import NoEngine
from inference.link.wire import AdapterRef, EngineStats, ModelInfo

COLD_LOAD_COST = 8
"""How many queued requests a cold adapter load weighs: what a load costs in steps of others'
waiting is within an order of magnitude of a short request, and it evicts somebody's adapter."""

RETRY_AFTER_S = 15.0
"""An engine that was lost is back within its start-up time, about this long on a small machine."""


@dataclass(slots=True)
class EngineState:
    """What this gateway knows of one engine."""

    id: str
    info: ModelInfo
    stats: EngineStats = field(default_factory=EngineStats)
    draining: bool = False
    dispatched: int = 0
    """Requests that this gateway has on it; fresher than the last stats."""

    @property
    def load(self) -> int:
        """Requests on it, from this gateway or any other."""
        reported = self.stats.running + self.stats.waiting + self.stats.queued
        return max(self.dispatched, reported)

    def cost(self, adapter: AdapterRef | None) -> int:
        """The choice's key: lower is better. Unit: requests' worth of waiting."""
        cold = adapter is not None and adapter.name not in self.stats.resident
        return self.load + (COLD_LOAD_COST if cold else 0)


def choose(engines: Iterable[EngineState], base_model: str, adapter: AdapterRef | None) -> str:
    """The id of the engine that should get a request for `adapter` (None: the base model itself).

    Raises:
        NoEngine: none of them serves this base model and takes new work.
    """
    serving = [e for e in engines if e.info.name == base_model and not e.draining]
    if not serving:
        raise NoEngine(
            f"No engine that serves `{base_model}` is connected.", retry_after_s=RETRY_AFTER_S
        )
    return min(serving, key=lambda engine: (engine.cost(adapter), engine.id)).id
