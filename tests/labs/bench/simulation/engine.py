"""A simulated engine: the agent's real queue, slots and prefix bookkeeping, and a model of vLLM.

The model: prompts are computed one after another at PREFILL_TOKENS_PER_S; answers are generated
concurrently, more slowly the more there are; the prefix cache holds whole blocks and evicts the
least recently used; an adapter that isn't loaded is loaded first, one at a time. docs/scale.md says
what the model leaves out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from inference.agent.engines.cache_news import Removed, Stored
from inference.agent.outbox import residency_change
from inference.agent.report_times import LinkReport, ReportTimes
from inference.agent.scheduler.lane import QueuedRequest
from inference.agent.scheduler.queue import Queue
from inference.agent.scheduler.slots import Slots
from inference.agent.warm_prefixes import WarmPrefixes
from inference.link.engine_info import EngineStats, ModelInfo
from inference.link.prefixes import Prefix
from inference.link.wire import Others, Stats
from inference.link.workload import Workload
from inference.operations.bodies.beginnings import FAR_STRIDE, MAX_MARKS, NEAR_CHARS, STRIDE
from tests.labs.bench.simulation.traces import BLOCK_TOKENS, Turn

NEAR_BLOCKS, FAR_BLOCKS = NEAR_CHARS // STRIDE, FAR_STRIDE // STRIDE
KV_TOKENS = 1 << 18
PREFILL_TOKENS_PER_S = 12_000
TOKEN_S, TOKEN_S_PER_RUNNING = 0.012, 0.000_25
"""Seconds per output token: of a single request, and added by each running one."""
LOAD_S = 0.4
SLOTS, PLACES = 8, 16
"""Adapters in one batch, and adapters loaded."""
MAX_RUNNING = 64

MODEL = ModelInfo(
    "base", 1 << 17, SLOTS, 64, KV_TOKENS, {"q_proj": (1, 1)}, "simulated", operations=["chat"]
)

At = Callable[[float], None]
"""A callback of the simulation, called with the current time."""


@dataclass(eq=False, slots=True)
class Job:
    """One request in flight. Times are in seconds; `done` is called when it ends."""

    id: str
    turn: Turn
    done: At
    came_at: float
    counted: bool
    """Whether it is included in the figures."""
    prefix: Prefix = field(init=False)
    first_token_at: float = 0.0
    cached_tokens: int = 0
    could_be_cached: int = 0
    """Tokens that one infinite engine would have had cached."""
    held_at: float = 0.0
    lost_at: float = 0.0
    resumed_at: float = 0.0
    """When its last engine died, and when the first token came from another one."""

    def __post_init__(self) -> None:
        self.prefix = _prefix(self.turn.blocks)

    @property
    def prompt_tokens(self) -> int:
        return BLOCK_TOKENS * len(self.turn.blocks)

    @property
    def held_tokens(self) -> int:
        """The average while the request runs."""
        return self.prompt_tokens + self.turn.output_tokens // 2


def _prefix(blocks: list[int]) -> Prefix:
    """The prefix that a gateway computes from a prompt's text; here each block is a stride, and
    its id is its hash."""
    last = len(blocks) - 1
    marks = [at for at in range(last) if at < NEAR_BLOCKS or at % FAR_BLOCKS == 0] + [last]
    marks = marks[:MAX_MARKS]
    return Prefix.of([blocks[at] for at in marks], [STRIDE * (at + 1) for at in marks])


@dataclass(eq=False)
class Engine:
    """One engine; `report` is polled for what its agent reports to all gateways."""

    id: str
    at: Callable[[float, At], None]
    tells: bool = True
    kv_tokens: int = KV_TOKENS
    alive: bool = True
    loads: int = 0
    worked_tokens: int = 0
    """Computed tokens: uncached prompt tokens and output."""
    busy: dict[str, Job] = field(default_factory=dict)
    """All requests on the engine."""
    _told_of: dict[str, tuple[At, At]] = field(default_factory=dict)
    """Callbacks for the first token of each request and for its end."""
    _cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _waiting: dict[str, Job] = field(default_factory=dict)
    _to_compute: dict[str, int] = field(default_factory=dict)
    """Uncached prompt tokens of running requests that have no output yet."""
    _computed_at: float = 0.0
    _loaded_at: float = 0.0
    _told: list[str] = field(default_factory=list)
    _mark: int = 0

    def __post_init__(self) -> None:
        self._slots = Slots(active=SLOTS, resident=PLACES)
        self._queue = Queue(
            self._slots, max_running=MAX_RUNNING, kv_tokens=self.kv_tokens, max_queued=10**6,
            max_queued_per_tenant=10**6, reserved=8,
        )  # fmt: skip
        self._warm = WarmPrefixes()
        self._times = ReportTimes(self.kv_tokens, 0.0)

    @property
    def held_tokens(self) -> int:
        """The sum over all requests on the engine."""
        return sum(job.held_tokens for job in self.busy.values())

    @property
    def resident(self) -> list[str]:
        """Adapters that are loaded."""
        return self._slots.resident

    def submit(self, job: Job, began: At, ended: At, now: float) -> None:
        """Queue a request; `began` and `ended` are called at its first token and its end."""
        self.busy[job.id] = self._waiting[job.id] = job
        self._told_of[job.id] = began, ended
        turn = job.turn
        name = None if turn.adapter is None else turn.adapter.name
        self._queue.push(
            QueuedRequest(
                job.id,
                turn.tenant,
                name,
                Workload(prompt_tokens=job.prompt_tokens),
                lane=turn.lane,
            ),
            now,
        )
        self._admit(now)

    def report(self, now: float) -> Stats | None:
        """The changes since the last report; None if none is due."""
        stats = self._stats()
        if (due := self._times.due(stats, now)) is None:
            return None
        resident = self._slots.resident
        loaded, evicted = residency_change(self._told, resident)
        self._told = resident
        told = Stats(stats, loaded=loaded, evicted=evicted)
        if due is LinkReport.WHOLE:
            told = replace(told, gained=self._queue.gained(), asks=True)
        else:
            told = replace(told, between=True)
        change = self._warm.since(self._mark)
        self._mark = change.mark
        if not self.tells:
            return told
        return replace(told, warm=change.warm, cold=change.cold, anew=change.anew)

    def _stats(self) -> EngineStats:
        waiting = list(self._waiting.values())
        held = sum(
            job.held_tokens
            for job in self.busy.values()
            if job.id not in self._waiting and job.id not in self._to_compute
        )
        queued = sum(self._to_compute.values()) + sum(
            job.prompt_tokens - self._warm.held_tokens(job.prefix, job.prompt_tokens)
            for job in waiting
        )
        return EngineStats(
            running=len(self.busy) - len(waiting),
            queued=len(waiting),
            kv_usage=min(1.0, held / self.kv_tokens),
            queued_tokens=queued,
            active=list(self._slots.in_use),
            awaited=list({job.turn.adapter.name: None for job in waiting if job.turn.adapter}),
            spare=PLACES - len(self._slots.resident),
        )

    def hear(self, others: Others) -> None:
        """Take in what other engines served."""
        self._queue.served_elsewhere(others.served)

    def die(self) -> list[Job]:
        """Stop; returns the requests on the engine, which it never ends."""
        self.alive = False
        lost, self.busy = list(self.busy.values()), {}
        return lost

    def _admit(self, now: float) -> None:
        for id in self._queue.admit(now):
            self._start(self._waiting.pop(id), now)

    def _start(self, job: Job, now: float) -> None:
        if job.turn.adapter is not None:
            now = self._load(job.turn.adapter.name, now)
        job.cached_tokens = self._store(job)
        uncached = job.prompt_tokens - job.cached_tokens
        self._to_compute[job.id] = uncached
        self.worked_tokens += uncached
        self._computed_at = max(now, self._computed_at) + uncached / PREFILL_TOKENS_PER_S
        self.at(self._computed_at, lambda now: self._begin_answer(job, now))

    def _load(self, name: str, now: float) -> float:
        """Load an adapter unless it is loaded; returns when it is ready."""
        if name not in self._slots.resident:
            for old in self._slots.to_evict(name):
                self._slots.unloaded(old)
            self.loads += 1
            now = self._loaded_at = max(now, self._loaded_at) + LOAD_S
        self._slots.loaded(name)
        return now

    def _begin_answer(self, job: Job, now: float) -> None:
        if not self.alive:
            return
        del self._to_compute[job.id]
        job.first_token_at, job.resumed_at = job.first_token_at or now, now
        self._told_of[job.id][0](now)
        running = len(self.busy) - len(self._waiting)
        takes_s = job.turn.output_tokens * (TOKEN_S + TOKEN_S_PER_RUNNING * running)
        self.at(now + takes_s, lambda now: self._end(job, now))

    def _end(self, job: Job, now: float) -> None:
        if not self.alive:
            return
        self.worked_tokens += job.turn.output_tokens
        self._touch(job.turn.blocks + job.turn.output_blocks)
        self._queue.progress(
            job.id,
            prompt_tokens=job.prompt_tokens,
            cached_tokens=job.cached_tokens,
            completion_tokens=job.turn.output_tokens,
        )
        self._queue.finish(job.id, now)
        del self.busy[job.id]
        self._told_of.pop(job.id)[1](now)
        self._admit(now)

    def _store(self, job: Job) -> int:
        """Add the job's prompt to the cache; returns how many of its tokens were already there."""
        held = 0
        for block in job.turn.blocks[:-1]:
            if block not in self._cache:
                break
            held += 1
        self._warm.expect(job.id, job.prefix)
        self._touch(job.turn.blocks)
        self._warm.counted(job.id, job.prompt_tokens)
        self._warm.update([Stored(job.id, None, job.turn.blocks, BLOCK_TOKENS)])
        return held * BLOCK_TOKENS

    def _touch(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) > self.kv_tokens // BLOCK_TOKENS:
            self._warm.update([Removed([self._cache.popitem(last=False)[0]])])
