"""What a request needs of an engine, and what this gateway knows of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from functools import lru_cache
from hashlib import blake2b

import msgspec

from inference.gateway.routing.warmth import Warmth
from inference.link.session import Attempt
from inference.link.wire import AdapterRef, EngineStats, ModelInfo, Prefix, Stats, Submit

REQUEST_TOKENS = 512
"""What a request is taken for where an engine counts requests alone: before protocol version 4."""
COUNTS_TOKENS_SINCE = 4

LOAD_TOKENS = 16_384
"""What a cold adapter load weighs: a second of a large engine's prefill, for which others wait.
With less, adapters that could do with one engine are loaded on several, and push others out."""
EVICTION_TOKENS = 8192
"""On top, where another adapter has to go, which its tenant then waits for."""
SLOT_TOKENS = 1024
"""Where all slots are in use: some running request has to end first."""
AWAITED_TOKENS = 1024
"""What is left of a load that others wait for already."""
LOADS_WITHIN = 30
"""Reports, of which there is one a second, within which an adapter that a request went for is
loaded there, or it failed."""
OUTPUT_TOKENS = 256
"""An answer is taken for that long, if it may be longer."""


class Needs(msgspec.Struct, frozen=True):
    """What an engine must be able to do for a request. What is not known asks for nothing.

    One is made for each decision, which a Struct costs 1 us and a frozen dataclass ten.
    """

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
    tenant: str = ""
    prompt_tokens: int = 0
    """About."""
    prefix: Prefix | None = None
    """Its prompt's beginnings."""
    share: float = 0.0
    """Of the traffic: what belongs to its tenant and adapter (`home`), 1 being all."""
    tiers: tuple[frozenset[str], ...] | None = None
    """The revisions that may run it (`pools.Pool.tiers`); None: any."""

    @property
    def home(self) -> int | None:
        """The number that ranks engines for it; None where it belongs to nobody."""
        name = "" if self.adapter is None else self.adapter.name
        return _home(self.tenant, name) if self.tenant or name else None


@dataclass(slots=True, eq=False)
class EngineState:
    """What this gateway knows of one engine. What every decision looks at is a plain attribute."""

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
    warm: InitVar[bytes | None] = None
    """`Hello.warm`."""
    resident: dict[str, None] = field(init=False)
    """LoRA names of the adapters loaded on it, least recently used first."""
    adapters: set[str] = field(init=False)
    """LoRA names of those and of the adapters that are on their way."""
    pool: str = field(init=False)
    """`ModelInfo.pool_digest`."""
    kind: tuple[str, int] = field(init=False)
    """Engines of one kind can do the same."""
    warmth: Warmth = field(init=False)
    load: int = field(init=False)
    """Tokens of requests on it, from this gateway or any other."""
    queue: int = field(init=False)
    """Tokens to be computed there before those of another request."""
    _recent: dict[Attempt, tuple[int, int]] = field(init=False, default_factory=dict)
    """What this gateway sent there since the last report: tokens that have to be computed before an
    answer begins, and those that it holds."""
    _expected: dict[str, int] = field(init=False, default_factory=dict)
    """LoRA names of adapters that requests went there for, with the number of the report before."""
    _reports: int = field(init=False, default=0)
    number: int = field(init=False)
    """Of its id: with that of a home it ranks the engine for that (rendezvous hashing), so that one
    that comes or goes changes the homes of its own share alone."""
    _module_names: frozenset[str] = field(init=False)

    def __post_init__(self, warm: bytes | None) -> None:
        self.resident = dict.fromkeys(self.stats.resident)
        self.pool = self.info.pool_digest()
        self.kind = self.pool, self.version
        self.warmth = Warmth(self.info.kv_tokens, warm)
        self.number = _number(self.id)
        self._module_names = frozenset(path.rpartition(".")[2] for path in self.info.modules)
        self._weigh()

    @property
    def counts_tokens(self) -> bool:
        """Whether it says how many tokens wait, and which adapters have slots."""
        return self.version >= COUNTS_TOKENS_SINCE

    def took(self, frame: Submit) -> None:
        """This gateway sent it a request: it is warm, loaded and waiting there from now on."""
        self.dispatched += 1
        uncached = frame.prompt_tokens
        if frame.prefix is not None:
            hashes, tokens = frame.prefix.numbers(), frame.prefix.tokens(uncached)
            known = self.warmth.longest(hashes)
            self.warmth.guess(hashes, tokens)
            uncached -= tokens[known - 1] if known else 0
        bounds = [one for one in (frame.wanted_tokens, frame.max_tokens) if one is not None]
        output = max(1, frame.choices) * min(OUTPUT_TOKENS, *bounds, OUTPUT_TOKENS)
        held = frame.prompt_tokens + output if self.counts_tokens else REQUEST_TOKENS
        self._recent[frame.id, frame.attempt] = uncached, held
        self.queue += uncached
        self.load += held
        if frame.adapter is not None and frame.adapter.name not in self.resident:
            self._expected[frame.adapter.name] = self._reports
            self.adapters.add(frame.adapter.name)

    def began(self, attempt: Attempt) -> None:
        """The first of its answer came: its prompt is computed."""
        if (recent := self._recent.get(attempt)) is not None:
            uncached, held = recent
            self._recent[attempt] = 0, held
            self.queue -= uncached

    def ended(self, attempt: Attempt) -> None:
        """It is no longer on the engine."""
        self.dispatched -= 1
        uncached, held = self._recent.pop(attempt, (0, 0))
        self.queue -= uncached
        self.load -= held

    @property
    def life(self) -> str:
        """Its agent's run, or where it doesn't say that, the engine."""
        return self.run or self.id

    def note(self, frame: Stats) -> None:
        """The engine said how it is, and what of its adapters changed; by version 1 all of them."""
        self.stats = frame.stats
        self._reports += not frame.between
        self._recent.clear()
        self.warmth.hear(frame.warm, frame.cold, anew=frame.anew, between=frame.between)
        if self.version == 1:
            self.resident = dict.fromkeys(frame.stats.resident)
        else:
            for name in (*frame.evicted, *frame.loaded):
                self.resident.pop(name, None)
            self.resident |= dict.fromkeys(frame.loaded)
        since = self._reports - LOADS_WITHIN
        for name in [one for one, at in self._expected.items() if at < since]:
            del self._expected[name]
        for name in self.resident if self.version == 1 else frame.loaded:
            self._expected.pop(name, None)
        self._weigh()

    def _weigh(self) -> None:
        stats = self.stats
        self.adapters = {*self.resident, *self._expected, *stats.awaited}
        if self.counts_tokens:
            self.queue = stats.queued_tokens
            self.load = int(stats.kv_usage * self.info.kv_tokens) + stats.queued_tokens
        else:
            waiting = stats.waiting + stats.queued
            self.queue = REQUEST_TOKENS * waiting
            self.load = REQUEST_TOKENS * max(self.dispatched, stats.running + waiting)

    def adapter_cost(self, name: str) -> int:
        """Tokens' worth of waiting until a request of this adapter may start."""
        active = self.stats.active
        if name in active:
            return 0
        full = SLOT_TOKENS if len(active) + len(self._expected) >= self.info.max_loras else 0
        if name in self.resident:
            return full
        if name in self._expected or name in self.stats.awaited:
            return AWAITED_TOKENS
        evicts = self.counts_tokens and self.stats.spare <= len(self._expected)
        return LOAD_TOKENS + (EVICTION_TOKENS if evicts else 0) + full

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


@lru_cache(maxsize=1024)
def _home(tenant: str, adapter: str) -> int:
    """A decision asks for it several times."""
    return _number(f"{tenant}\0{adapter}")


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
