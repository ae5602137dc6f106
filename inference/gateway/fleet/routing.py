"""Which engine gets a request. No sockets, no loop: engines and their states in, a choice out.

Engines of one base model may differ: during a rollout one takes adapters of rank 64 and another of
rank 16, or only one has a tool parser. A request goes only to an engine that can do it. Among those
one that already holds the adapter goes before one that would have to load it, unless its queue is
so much longer that loading is the shorter wait; among equals the least loaded goes first.

Where no engine can, it depends on whose matter that is. What the operator's fleet lacks (an
engine, a rank, a module, an operation) is `NoEngine`, which may pass. What the client asked for and
no engine of this base model offers (a longer context, tools) goes to an engine all the same, whose
error names the field and the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from inference.errors import NoEngine
from inference.link.wire import AdapterRef, EngineStats, ModelInfo, Stats

COLD_LOAD_COST = 8
"""How many queued requests a cold adapter load weighs: what a load costs in steps of others'
waiting is within an order of magnitude of a short request, and it evicts somebody's adapter."""

RETRY_AFTER_S = 15.0
"""An engine that was lost is back within its start-up time, about this long on a small machine."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an engine must be able to do for a request. What is not known asks for nothing."""

    base_model: str
    adapter: AdapterRef | None = None
    operation: str = ""
    """`Submit.kind`."""
    tokens: int = 0
    """Prompt and answer together, as far as the client set them."""
    parsers: tuple[str, ...] = ()
    """Keys of `ModelInfo.parsers`."""
    version: int = 1
    """Of the link's protocol, at least."""


@dataclass(slots=True)
class EngineState:
    """What this gateway knows of one engine."""

    id: str
    info: ModelInfo
    stats: EngineStats = field(default_factory=EngineStats)
    draining: bool = False
    dispatched: int = 0
    """Requests that this gateway has on it; fresher than the last stats."""
    version: int = 1
    """Of the protocol that its link speaks."""
    run: str = ""
    """The agent's run, if it says so."""
    resident: dict[str, None] = field(init=False)
    """LoRA names of the adapters loaded on it, least recently used first."""
    pool: str = field(init=False)
    """`ModelInfo.pool_digest`."""
    _module_names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.resident = dict.fromkeys(self.stats.resident)
        self.pool = self.info.pool_digest()
        self._module_names = frozenset(path.rpartition(".")[2] for path in self.info.modules)

    @property
    def load(self) -> int:
        """Requests on it, from this gateway or any other."""
        reported = self.stats.running + self.stats.waiting + self.stats.queued
        return max(self.dispatched, reported)

    @property
    def life(self) -> str:
        """Its agent's run, or where it doesn't say that, the engine."""
        return self.run or self.id

    def note(self, frame: Stats) -> None:
        """The engine said how it is, and what of its adapters changed; by version 1 all of them."""
        self.stats = frame.stats
        if self.version == 1:
            self.resident = dict.fromkeys(frame.stats.resident)
            return
        for name in (*frame.evicted, *frame.loaded):
            self.resident.pop(name, None)
        self.resident |= dict.fromkeys(frame.loaded)

    def cost(self, adapter: AdapterRef | None) -> int:
        """The choice's key: lower is better. Unit: requests' worth of waiting."""
        cold = adapter is not None and adapter.name not in self.resident
        return self.load + (COLD_LOAD_COST if cold else 0)

    def lacks(self, needs: Needs) -> Iterator[str]:
        """What the request needs that the fleet should have and this engine has not."""
        if needs.version > self.version:
            yield f"version {needs.version} of the engine link (it speaks {self.version})"
        if needs.operation and needs.operation not in (self.info.operations or [needs.operation]):
            yield f"the operation `{needs.operation}`"
        if needs.adapter is not None:
            yield from self.cannot_load(needs.adapter)

    def cannot_load(self, adapter: AdapterRef) -> Iterator[str]:
        """What this adapter needs of an engine and this one has not."""
        if adapter.rank > self.info.max_lora_rank:
            yield f"adapters of rank {adapter.rank} (it takes up to {self.info.max_lora_rank})"
        if missing := [name for name in adapter.modules if name not in self._module_names]:
            yield f"adapters on {', '.join(missing)}"

    def offers(self, needs: Needs) -> bool:
        """Whether it has what the client asked for beyond that."""
        known = bool(self.info.revision)  # else it doesn't say what parsers it has
        return needs.tokens <= self.info.max_model_len and (
            not known or all(name in self.info.parsers for name in needs.parsers)
        )


def choose(engines: Iterable[EngineState], needs: Needs) -> str:
    """The id of the engine that should get a request.

    Raises:
        NoEngine: none of them serves this base model, takes new work and can do it.
    """
    serving = [e for e in engines if e.info.name == needs.base_model and not e.draining]
    if not serving:
        raise NoEngine(
            f"No engine that serves `{needs.base_model}` is connected.", retry_after_s=RETRY_AFTER_S
        )
    able = [engine for engine in serving if not any(engine.lacks(needs))]
    if not able:
        raise NoEngine(_lacking(serving, needs), retry_after_s=RETRY_AFTER_S)
    able = [engine for engine in able if engine.offers(needs)] or able
    return min(able, key=lambda engine: (engine.cost(needs.adapter), engine.id)).id


def _lacking(serving: list[EngineState], needs: Needs) -> str:
    """By the engine that lacks least."""
    least = min((list(engine.lacks(needs)) for engine in serving), key=len)
    return (
        f"No engine that serves `{needs.base_model}` can take this now: it needs "
        f"{' and '.join(least)}."
    )
