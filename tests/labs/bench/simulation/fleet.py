"""Gateways, engines and clients in virtual time, and the resulting figures.

Each gateway has its own view of every engine (`EngineState`), as in the product, which the agents'
reports update; it routes with `routing.choose`. As a reference, one infinite engine with all places
of the fleet is given every request in the same order: the figures include what its cache would have
held and which adapters it would have had to load.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from inference.agent.report_times import SOONER_S
from inference.errors import NoEngine
from inference.gateway.fleet.service import FleetService
from inference.gateway.routing.choice import choose
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.gateway.routing.engines import Able
from tenants.limits.commands import Charge, CountedScope, LimitRefused, SettleReservation, TokenRate
from tenants.limits.state import LimitState
from tests.labs.bench.simulation.engine import KV_TOKENS, MODEL, PLACES, Engine, Job
from tests.labs.bench.simulation.gateway import HOLDING, Gateway, Router, retry_after_s
from tests.labs.bench.simulation.traces import BLOCK_TOKENS, Turn

SAMPLE_S = 1.0
DETECT_S = 0.5
"""Seconds until an engine's death is detected and its requests are sent to others."""


def by_chance(able: Able, needs: Needs, rng: random.Random) -> EngineState:
    """A random engine."""
    return rng.choice(able)


def least_loaded(able: Able, needs: Needs, rng: random.Random) -> EngineState:
    """The less loaded of two random engines."""
    return min(rng.sample(able, 2), key=lambda engine: engine.load)


@dataclass
class Infinite:
    """One engine with an infinite cache and all places of the fleet."""

    places: int
    seen: set[int] = field(default_factory=set)
    loads: int = 0
    _loaded: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def take(self, job: Job) -> int:
        """Add a job's blocks to the cache; returns how many of its prompt's tokens were in it."""
        held = 0
        for block in job.turn.blocks[:-1]:
            if block not in self.seen:
                break
            held += 1
        self.seen.update(job.turn.blocks, job.turn.output_blocks)
        if job.turn.adapter is not None:
            self._use(job.turn.adapter.name)
        return held * BLOCK_TOKENS

    def _use(self, name: str) -> None:
        if name not in self._loaded:
            self.loads += 1
            if len(self._loaded) == self.places:
                self._loaded.popitem(last=False)
        self._loaded[name] = None
        self._loaded.move_to_end(name)


@dataclass
class Figures:
    """Figures of the requests that were counted."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    could_be_cached: int = 0
    loads: int = 0
    least_loads: int = 0
    worked: list[int] = field(default_factory=list)
    """Tokens that each engine computed."""
    held: list[list[int]] = field(default_factory=list)
    """Tokens on each engine, once a second."""
    ttft_s: list[tuple[str, float]] = field(default_factory=list)
    """Tenant and TTFT of each interactive request."""
    decision_s: list[float] = field(default_factory=list)
    """CPU time of each routing decision that was timed."""
    served: Counter[str] = field(default_factory=Counter)
    """Tokens computed for each tenant."""
    with_adapter: int = 0
    """Requests with an adapter."""
    moves: int = 0
    moved_again: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """Time from an engine's death to the first token from another one."""
    refused: int = 0
    held_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """How long requests were held until an engine took them, by tenant."""
    most_held: int = 0
    """Most requests held at once, at all gateways."""
    turned_away: Counter[str] = field(default_factory=Counter)
    """Requests that could not be held, or not for long enough, by tenant; they are retried."""
    let_through: Counter[str] = field(default_factory=Counter)
    """Tokens admitted for each tenant that has a limit."""

    def add(self, job: Job) -> None:
        """Count an answered request."""
        self.requests += 1
        self.prompt_tokens += job.prompt_tokens
        self.cached_tokens += job.cached_tokens
        self.could_be_cached += job.could_be_cached
        self.with_adapter += job.turn.adapter is not None
        self.served[job.turn.tenant] += (
            job.prompt_tokens - job.cached_tokens + job.turn.output_tokens
        )
        if job.turn.lane == "interactive":
            self.ttft_s.append((job.turn.tenant, job.first_token_at - job.came_at))

    def ttft_ms(
        self, share: float, without: Container[str] = (), *, only: Container[str] | None = None
    ) -> float:
        """A quantile of TTFT over all tenants but those in `without`, or over those in `only`."""
        found = [
            one
            for tenant, one in self.ttft_s
            if tenant not in without and (only is None or tenant in only)
        ]
        return 1000 * percentile(found, share)

    def gap_ms(self, share: float) -> float:
        """A quantile of the gaps of moves; 0 if there were none."""
        return 1000 * percentile(self.gaps_s or [0.0], share)

    @property
    def found_loaded(self) -> float:
        """Share of the requests with an adapter that found it loaded."""
        return 1 - self.loads / max(1, self.with_adapter)

    @property
    def hit_ratio(self) -> float:
        """Cache hits over the infinite engine's."""
        return self.cached_tokens / max(1, self.could_be_cached)

    @property
    def load_ratio(self) -> float:
        """Adapter loads over the infinite engine's."""
        return self.loads / max(1, self.least_loads)

    @property
    def skew(self) -> float:
        """p99 over mean of the tokens that engines computed."""
        return percentile(self.worked, 0.99) * len(self.worked) / max(1, sum(self.worked))

    @property
    def held_skew(self) -> float:
        """p99 over mean of the tokens on engines, averaged over time for each engine."""
        alive = min(map(len, self.held))
        of_each = [sum(held[at] for held in self.held) for at in range(alive)]
        return percentile(of_each, 0.99) * alive / max(1, sum(of_each))

    @property
    def momentary_skew(self) -> float:
        """p99 over mean of the tokens on engines, over all engines and seconds."""
        shares = [one * len(held) / max(1, sum(held)) for held in self.held for one in held]
        return percentile(shares, 0.99)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a `share` of the values lies."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


class Fleet:
    """Engines, gateways and clients; `run` advances virtual time."""

    def __init__(
        self,
        engines: int,
        gateways: int,
        *,
        router: Router = choose,
        tells: bool = True,
        kv_tokens: int = KV_TOKENS,
        engines_come_s: float = 0.0,
        seed: int = 1,
    ) -> None:
        """`router` chooses the engines, by default the product's router. With `tells`, engines
        report their prefix caches, which hold `kv_tokens`. They join one after another within
        `engines_come_s`."""
        self.now = 0.0
        self.figures = Figures()
        self._rng = random.Random(seed)
        self._limits: Mapping[str, int] = {}
        self._limit_state = LimitState()
        self._counting = False
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order, self._ids = itertools.count(), itertools.count()
        self._info = msgspec.structs.replace(MODEL, kv_tokens=kv_tokens)
        self._tells = tells
        self.engines = {f"e{i}": Engine(f"e{i}", self.at, tells, kv_tokens) for i in range(engines)}
        self.gateways = [Gateway(self._rng, router) for _ in range(gateways)]
        self._service = FleetService()
        """Served totals of the gateway that engines ask. One suffices: all gateways hear the
        same."""
        self._listeners = {id: self._service.join(id) for id in self.engines}
        self._infinite = Infinite(engines * PLACES)
        self._before: dict[str, tuple[int, int]] = {}
        for number, engine in enumerate(self.engines.values()):
            if engines_come_s:
                self.at(engines_come_s * (1 + number) / engines, partial(self._join, engine))
            else:
                self._join(engine, 0.0)
        self.at(SAMPLE_S, self._sample)

    def at(self, when: float, call: Callable[[float], None]) -> None:
        """Schedule `call` for the time `when`, which it is passed."""
        heapq.heappush(self._events, (when, next(self._order), call))

    def run(self, until: float) -> None:
        """Process all events up to the time `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, call = heapq.heappop(self._events)
            call(self.now)
        self.now = until

    def count_from_now(self) -> None:
        """Reset the figures: caches are now warm."""
        self.figures, self._counting = Figures(), True
        for gateway in self.gateways:
            gateway.decision_s.clear()
        self._before = {id: (one.worked_tokens, one.loads) for id, one in self.engines.items()}
        self._infinite.loads = 0

    def counted(self) -> Figures:
        """Stop counting and return the figures."""
        self._counting = False
        for id, (worked, loads) in self._before.items():
            engine = self.engines[id]
            self.figures.loads += engine.loads - loads
            if engine.alive:
                self.figures.worked.append(engine.worked_tokens - worked)
        self.figures.least_loads = self._infinite.loads
        for gateway in self.gateways:
            self.figures.decision_s += gateway.decision_s
        return self.figures

    def keep(self, sessions: Iterable[Iterator[Turn]], spread_s: float) -> None:
        """Add clients, each of which sends a session's turns in order and begins within
        `spread_s`."""
        for each in sessions:
            self.at(self.now + self._rng.random() * spread_s, partial(self._next, each))

    def replay(self, trace: Iterable[tuple[float, Turn]]) -> None:
        """Add the requests of a trace at their recorded times."""
        for when, turn in trace:
            self.at(self.now + when, partial(self._submit, turn, lambda now: None))

    def limit(self, tokens_per_minute: Mapping[str, int]) -> None:
        """Replace all limits: from now on exactly these tenants have one."""
        self._limits = tokens_per_minute

    @property
    def known_beginnings(self) -> int:
        """Prefixes of which the first gateway knows that engines hold them."""
        return sum(len(view.warmth.known) for view in self.gateways[0].views.values())

    def kill(self, ids: Iterable[str]) -> None:
        """Kill engines; once detected, their requests start again on others."""
        for id in ids:
            self.at(self.now + DETECT_S, partial(self._bury, id, self.engines[id].die()))

    def _bury(self, id: str, lost: list[Job], now: float) -> None:
        for gateway in self.gateways:
            gateway.leave(id)
        self._service.leave(self._listeners[id])
        for job in lost:
            self.figures.moves += 1
            self.figures.moved_again += job.lost_at > 0
            job.lost_at = now - DETECT_S
            self._dispatch(job, now)

    def _next(self, session: Iterator[Turn], now: float) -> None:
        if (turn := next(session, None)) is not None:
            self.at(now + turn.after_s, partial(self._submit, turn, partial(self._next, session)))

    def _submit(self, turn: Turn, done: Callable[[float], None], now: float) -> None:
        job = Job(f"{next(self._ids)}", turn, done, came_at=now, counted=self._counting)
        if (wait_s := self._refused(job, now)) is not None:
            self.figures.refused += 1
            self.at(now + wait_s, partial(self._submit, turn, done))
            return
        job.could_be_cached = self._infinite.take(job)
        self._dispatch(job, now)

    def _refused(self, job: Job, now: float) -> float | None:
        """Seconds until the tenant may retry, if its limit refuses the job now; else None."""
        if (limit := self._limits.get(job.turn.tenant)) is None:
            return None
        scope = CountedScope(job.turn.tenant, {"tokens_per_minute": limit})
        output = job.turn.output_tokens
        asked = {"requests": 1}
        charge = Charge(
            job.id, "gateway", (scope,), TokenRate(), asked, job.prompt_tokens, output, output
        )
        answer = self._limit_state.run(charge, int(now * 1000))
        if isinstance(answer, LimitRefused):
            return (answer.wait_ms or 1000) / 1000
        self.figures.let_through[job.turn.tenant] += job.prompt_tokens + output
        return None

    def _dispatch(self, job: Job, now: float) -> None:
        gateway = self._rng.choice(self.gateways)
        try:
            view = gateway.place(job)
        except NoEngine as refusal:
            return self._turn_away(job, retry_after_s(refusal), now)
        if view is not None:
            return self._start(gateway, job, view, now)
        job.held_at = now
        self.figures.most_held = max(self.figures.most_held, sum(g.held for g in self.gateways))
        self.at(now + HOLDING.seconds, partial(self._waited, gateway, job))

    def _waited(self, gateway: Gateway, job: Job, now: float) -> None:
        if gateway.give_up(job):
            self._turn_away(job, HOLDING.retry_after_s, now)

    def _turn_away(self, job: Job, retry_s: float, now: float) -> None:
        self.figures.turned_away[job.turn.tenant] += 1
        self.at(now + retry_s, partial(self._dispatch, job))

    def _take_up(self, gateway: Gateway, now: float) -> None:
        for job, view in gateway.take_up():
            self.figures.held_s[job.turn.tenant].append(now - job.held_at)
            self._start(gateway, job, view, now)

    def _start(self, gateway: Gateway, job: Job, view: EngineState, now: float) -> None:
        engine = self.engines[view.id]
        if engine.alive:
            engine.submit(job, partial(self._began, gateway, job, view),
                          partial(self._ended, job, view), now)  # fmt: skip
        else:  # it died, which this gateway does not know yet
            self.at(now + DETECT_S, partial(self._dispatch, job))

    def _began(self, gateway: Gateway, job: Job, view: EngineState, now: float) -> None:
        if gateway.began(job, view):
            self._take_up(gateway, now)

    def _ended(self, job: Job, view: EngineState, now: float) -> None:
        view.ended((job.id, 1))
        if job.turn.tenant in self._limits:
            self._limit_state.run(
                SettleReservation(
                    job.id, job.prompt_tokens, job.cached_tokens, job.turn.output_tokens
                ),
                int(now * 1000),
            )
        if job.lost_at:
            self.figures.gaps_s.append(job.resumed_at - job.lost_at)
        if job.counted and self._counting:
            self.figures.add(job)
        job.done(now)

    def _join(self, engine: Engine, now: float) -> None:
        for gateway in self.gateways:
            gateway.join(engine.id, self._info, tells=self._tells)
            self._take_up(gateway, now)
        self.at(now + self._rng.random() * SOONER_S, partial(self._report, engine))

    def _report(self, engine: Engine, now: float) -> None:
        if not engine.alive:
            return
        if (frame := engine.report(now)) is not None:
            for gateway in self.gateways:
                gateway.hear(engine.id, frame)
            if frame.asks:
                listener = self._listeners[engine.id]
                self._service.add_gains(listener, frame.gained, now)
                if others := self._service.answer(listener, asks=True):
                    engine.hear(others)
        self.at(now + SOONER_S, partial(self._report, engine))

    def _sample(self, now: float) -> None:
        if self._counting:
            alive = [one for one in self.engines.values() if one.alive]
            self.figures.held.append([one.held_tokens for one in alive])
        self.at(now + SAMPLE_S, self._sample)


def endless(session: Callable[[], Iterator[Turn]]) -> Iterator[Turn]:
    """The turns of one session after another, without end."""
    while True:
        yield from session()
