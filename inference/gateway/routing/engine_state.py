"""What a request needs of an engine, and what this gateway knows about each engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from functools import lru_cache
from hashlib import blake2b

import msgspec

from inference.gateway.routing.warmth import Warmth
from inference.link.engine_info import AdapterRef, EngineStats, ModelInfo
from inference.link.prefixes import Prefix
from inference.link.session import AttemptKey
from inference.link.wire import Stats, Submit
from inference.link.workload import Workload

LOAD_TOKENS = 16_384
"""Cost of a cold adapter load: a second of a large engine's prefill, for which other requests wait.
With less, adapters for which one engine is enough are loaded on several, and push others out."""
EVICTION_TOKENS = 8192
"""Added if another adapter has to be evicted, for which its tenant then waits."""
WAKE_TOKENS = 32_768
"""Cost of an engine that sleeps: it takes seconds to wake up, and its device's memory then."""
SLOT_TOKENS = 1024
"""Added if all slots are in use: a running request has to end first."""
AWAITED_TOKENS = 1024
"""What is left of a load for which other requests wait already."""
LOADS_WITHIN = 30
"""Reports, one a second, after which an adapter that a request needed is loaded, or failed to."""
OUTPUT_TOKENS = 256
"""Assumed length of an answer that may be longer."""


class Needs(msgspec.Struct, frozen=True):
    """What an engine must be able to do for a request. Defaults require nothing.

    One is made for each decision: as a Struct that takes 1 us, as a frozen dataclass 10 us.
    """

    base_model: str
    adapter: AdapterRef | None = None
    operation: str = ""
    """`Submit.kind`."""
    tokens: int = 0
    """Prompt and answer together, as far as the client bounds them."""
    parsers: tuple[str, ...] = ()
    """Keys of `ModelInfo.parsers`."""
    tenant: str = ""
    prompt_tokens: int = 0
    """An estimate."""
    prefix: Prefix | None = None
    """Its prompt's beginnings."""
    share: float = 0.0
    """Share of the traffic that belongs to its tenant and adapter (`home`), 0 to 1."""
    tiers: tuple[frozenset[str], ...] | None = None
    """The revisions that may run it (`pools.Pool.tiers`); None: any."""

    @property
    def home(self) -> int | None:
        """The number that ranks engines for its tenant and adapter; None if it has neither."""
        name = "" if self.adapter is None else self.adapter.name
        return _home(self.tenant, name) if self.tenant or name else None


@dataclass(slots=True, eq=False)
class EngineState:
    """What this gateway knows about one engine. What every decision reads is a plain attribute."""

    id: str
    info: ModelInfo
    stats: EngineStats = field(default_factory=EngineStats)
    draining: bool = False
    dispatched: int = 0
    """Requests that this gateway has on it; fresher than the last stats."""
    run: str = ""
    """The agent's run."""
    warm: InitVar[bytes | None] = None
    """`Hello.warm`."""
    resident: dict[str, None] = field(init=False)
    """LoRA names of the adapters loaded on it, least recently used first."""
    adapters: set[str] = field(init=False)
    """LoRA names of these, and of adapters about to be loaded."""
    pool: str = field(init=False)
    """`ModelInfo.pool_digest`: engines of one pool can run the same requests."""
    warmth: Warmth = field(init=False)
    load: int = field(init=False)
    """Tokens of all requests on it, from this gateway or any other."""
    queue: int = field(init=False)
    """Prompt tokens that it has to compute before those of a new request."""
    _recent: dict[AttemptKey, tuple[int, int]] = field(init=False, default_factory=dict)
    """Attempts that this gateway sent since the last report: uncached prompt tokens still to be
    computed (part of `queue`), and tokens that the request occupies (part of `load`)."""
    _expected: dict[str, int] = field(init=False, default_factory=dict)
    """LoRA names of adapters that requests sent there need, with the number of the report before.
    """
    _reports: int = field(init=False, default=0)
    number: int = field(init=False)
    """Hash of its id. Combined with the number of a home it ranks the engine for that home
    (rendezvous hashing), so that an engine that joins or leaves changes only its own share of
    homes."""
    _module_names: frozenset[str] = field(init=False)
    _only: frozenset[str] = field(init=False)
    """`ModelInfo.only_adapters`."""

    def __post_init__(self, warm: bytes | None) -> None:
        self.resident = dict.fromkeys(self.stats.resident)
        self.pool = self.info.pool_digest()
        self.warmth = Warmth(self.info.kv_tokens, warm)
        self.number = _number(self.id)
        self._module_names = frozenset(path.rpartition(".")[2] for path in self.info.modules)
        self._only = frozenset(self.info.only_adapters)
        self._weigh()

    def sent(self, frame: Submit) -> None:
        """This gateway sent it a request, which counts as warm, loaded and waiting from now on."""
        self.dispatched += 1
        workload = frame.workload
        uncached = 0 if frame.handover else self.uncached(workload, frame.prefix)
        if frame.prefix is not None:
            tokens = frame.prefix.tokens(workload.prompt_tokens)
            self.warmth.guess(frame.prefix.numbers(), tokens)
        most = OUTPUT_TOKENS if workload.max_tokens is None else workload.max_tokens
        held = workload.prompt_tokens + workload.choices * min(OUTPUT_TOKENS, most)
        self._recent[frame.id, frame.attempt] = uncached, held
        self.queue += uncached
        self.load += held
        if frame.adapter is not None and frame.adapter.name not in self.resident:
            self._expected[frame.adapter.name] = self._reports
            self.adapters.add(frame.adapter.name)

    def uncached(self, workload: Workload, prefix: Prefix | None) -> int:
        """How many tokens of this prompt it would have to compute."""
        if prefix is None or not (known := self.warmth.longest(prefix.numbers())):
            return workload.prompt_tokens
        return workload.prompt_tokens - prefix.tokens(workload.prompt_tokens)[known - 1]

    def began(self, attempt: AttemptKey) -> None:
        """The first output of an attempt came: its prompt has been computed."""
        if (recent := self._recent.get(attempt)) is not None:
            uncached, held = recent
            self._recent[attempt] = 0, held
            self.queue -= uncached

    def ended(self, attempt: AttemptKey) -> None:
        """An attempt is no longer on the engine."""
        self.dispatched -= 1
        uncached, held = self._recent.pop(attempt, (0, 0))
        self.queue -= uncached
        self.load -= held

    def note(self, frame: Stats) -> None:
        """Take the engine's report: its stats, and which adapters changed."""
        self.stats = frame.stats
        self._reports += not frame.between
        self._recent.clear()
        self.warmth.update(frame.warm, frame.cold, anew=frame.anew, between=frame.between)
        for name in (*frame.evicted, *frame.loaded):
            self.resident.pop(name, None)
        self.resident |= dict.fromkeys(frame.loaded)
        since = self._reports - LOADS_WITHIN
        for name in [one for one, at in self._expected.items() if at < since]:
            del self._expected[name]
        for name in frame.loaded:
            self._expected.pop(name, None)
        self._weigh()

    def _weigh(self) -> None:
        stats = self.stats
        self.adapters = {*self.resident, *self._expected, *stats.awaited}
        self.queue = stats.queued_tokens + (WAKE_TOKENS if stats.asleep else 0)
        self.load = int(stats.kv_usage * self.info.kv_tokens) + stats.queued_tokens

    def adapter_cost(self, name: str) -> int:
        """The wait until a request of this adapter can start, in tokens."""
        active = self.stats.active
        if name in active:
            return 0
        full = SLOT_TOKENS if len(active) + len(self._expected) >= self.info.max_loras else 0
        if name in self.resident:
            return full
        if name in self._expected or name in self.stats.awaited:
            return AWAITED_TOKENS
        evicts = self.stats.spare <= len(self._expected)
        return LOAD_TOKENS + (EVICTION_TOKENS if evicts else 0) + full

    def lacks(self, needs: Needs) -> Iterator[str]:
        """What the request needs from the fleet that this engine lacks."""
        if needs.operation and needs.operation not in self.info.operations:
            yield f"the operation `{needs.operation}`"
        if needs.adapter is not None:
            yield from self.cannot_load(needs.adapter)

    def cannot_load(self, adapter: AdapterRef) -> Iterator[str]:
        """What the adapter needs that this engine lacks."""
        if adapter.rank > self.info.max_lora_rank:
            yield (
                f"adapters of rank {adapter.rank} (the engine's maximum is "
                f"{self.info.max_lora_rank})"
            )
        if missing := [name for name in adapter.modules if name not in self._module_names]:
            yield f"adapters of the modules {', '.join(missing)}"
        if self._only and adapter.digest not in self._only:
            yield f"a server that was started with the adapter {adapter.digest}"

    def offers(self, needs: Needs) -> bool:
        """Whether it has what the client asked for besides: the context length and parsers."""
        has_parsers = all(name in self.info.parsers for name in needs.parsers)
        return has_parsers and needs.tokens <= self.info.max_model_len


@lru_cache(maxsize=1024)
def _home(tenant: str, adapter: str) -> int:
    """Cached, because one decision needs it several times."""
    return _number(f"{tenant}\0{adapter}")


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
