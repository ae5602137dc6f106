"""Plans: traffic that is drawn at random, and the requests of a trace with tenants.

A session is a conversation: each turn's prompt has all before it, answers included (as text of
their length: the real ones are not known when the plan is made). Think time passes between the
planned times of two turns, whether or not the first is answered by then. So nothing in a plan
depends on the endpoint.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from inference.load.arrivals import Arrivals, poisson
from inference.load.callers import LoadCaller
from inference.load.lengths import LengthFigures
from inference.load.planned import MOST_REQUESTS, BadLoadPlan, PlannedRequest, PromptPiece
from inference.load.popularity import Zipf
from inference.load.traces import BLOCK_TOKENS, TraceRow


class CallerChoice:
    """Draws who asks for what: tenants by Zipf in the order of the file, and each one's models."""

    def __init__(
        self, callers: Sequence[LoadCaller], tenants_zipf: float, models_zipf: float
    ) -> None:
        self._callers = callers
        self._tenants = Zipf(len(callers), tenants_zipf)
        self._models = {one.tenant: Zipf(len(one.models), models_zipf) for one in callers}

    def draw(self, rng: random.Random) -> tuple[str, str]:
        """A tenant and a model."""
        return self.model_of(self._callers[self._tenants.draw(rng)], rng)

    def model_of(self, caller: LoadCaller, rng: random.Random) -> tuple[str, str]:
        """This tenant and one of its models."""
        return caller.tenant, caller.models[self._models[caller.tenant].draw(rng)]


@dataclass(frozen=True, slots=True)
class TenantFlood:
    """One tenant's further requests, a Poisson process with this rate for some seconds."""

    caller: LoadCaller
    rate: float
    from_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadScenario:
    """`times` are those of sessions for a rate and a seed. `rate` is in requests a second.

    With `thrash`, sessions take all models in turn: with more adapters than slots, an engine that
    keeps the most recently used ones never has the one that is asked for.
    """

    callers: Sequence[LoadCaller]
    times: Callable[[float, int], Arrivals]
    rate: float
    duration_s: float
    lengths: LengthFigures
    tenants_zipf: float = 1.0
    models_zipf: float = 1.0
    prefix_tokens: int = 0
    """Of each model's system prompt, with which all prompts for it begin; longer prompts keep them
    whole."""
    turns: float = 1.0
    """Of a session, on average; their number has a geometric distribution."""
    think_s: float = 10.0
    follow_up_tokens: float = 60.0
    """Of the questions after the first one, on average."""
    longest: int = 1 << 20
    """Tokens of a prompt: longer first ones are cut, and sessions end before they are longer."""
    flood: TenantFlood | None = None
    thrash: bool = False
    seed: int = 0

    def plan(self) -> list[PlannedRequest]:
        """All requests, in order of time.

        Raises:
            BadLoadPlan: there are more than MOST_REQUESTS.
        """
        if (expected := self.rate * self.duration_s) > MOST_REQUESTS:
            raise BadLoadPlan(f"about {expected:,.0f} requests: at most {MOST_REQUESTS:,}")
        pieces = _Pieces()
        planned = [*self._sessions(pieces), *self._flood(pieces)]
        if len(planned) > MOST_REQUESTS:
            raise BadLoadPlan(f"{len(planned):,} requests: at most {MOST_REQUESTS:,}")
        return sorted(planned, key=lambda one: one.at_s)

    def _sessions(self, pieces: _Pieces) -> Iterator[PlannedRequest]:
        rng = random.Random(f"{self.seed}:sessions")
        choice = CallerChoice(self.callers, self.tenants_zipf, self.models_zipf)
        in_turn = itertools.cycle((one.tenant, m) for one in self.callers for m in one.models)
        times = self.times(self.rate / self.turns, self.seed)
        for at_s in itertools.takewhile(lambda at: at < self.duration_s, times):
            who = next(in_turn) if self.thrash else choice.draw(rng)
            yield from self._session(at_s, who, rng, pieces)

    def _session(
        self, at_s: float, who: tuple[str, str], rng: random.Random, pieces: _Pieces
    ) -> Iterator[PlannedRequest]:
        held, output = self._first(who, rng, pieces)
        while at_s < self.duration_s:
            yield PlannedRequest(at_s, *who, held, output)
            if rng.random() < 1 / self.turns:
                return
            asked = 1 + round(rng.expovariate(1 / self.follow_up_tokens))
            held = (*held, pieces.fresh(output), pieces.fresh(asked))
            if sum(tokens for _, tokens in held) > self.longest:
                return
            at_s += rng.expovariate(1 / self.think_s)
            _, output = self.lengths.draw(rng)

    def _first(
        self, who: tuple[str, str], rng: random.Random, pieces: _Pieces
    ) -> tuple[tuple[PromptPiece, ...], int]:
        """The first prompt of a session, and its answer's length."""
        prompt, output = self.lengths.draw(rng)
        prompt = min(prompt, self.longest)
        if not self.prefix_tokens:
            return (pieces.fresh(prompt),), output
        own = pieces.fresh(max(1, prompt - self.prefix_tokens))
        return (pieces.system_of(who, self.prefix_tokens), own), output

    def _flood(self, pieces: _Pieces) -> Iterator[PlannedRequest]:
        if (flood := self.flood) is None:
            return
        if (expected := flood.rate * flood.for_s) > MOST_REQUESTS:
            raise BadLoadPlan(f"the flood has {expected:,.0f} requests: at most {MOST_REQUESTS:,}")
        rng = random.Random(f"{self.seed}:flood")
        choice = CallerChoice([flood.caller], 0, self.models_zipf)
        # Another seed: with the same one, it would come at the times of the others.
        times = poisson(flood.rate, ~self.seed)
        for at_s in itertools.takewhile(lambda at: at < flood.for_s, times):
            who = choice.draw(rng)
            held, output = self._first(who, rng, pieces)
            yield PlannedRequest(flood.from_s + at_s, *who, held, output)


class _Pieces:
    """Hands out pieces of prompts."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._systems: dict[tuple[str, str], PromptPiece] = {}

    def fresh(self, tokens: int) -> PromptPiece:
        """One that no other prompt has."""
        return next(self._ids), tokens

    def system_of(self, who: tuple[str, str], tokens: int) -> PromptPiece:
        """The same one for each prompt of this tenant and model."""
        if who not in self._systems:
            self._systems[who] = self.fresh(tokens)
        return self._systems[who]


def replay(
    rows: Iterable[TraceRow],
    choice: CallerChoice,
    *,
    speed: float = 1.0,
    shrink: int = 1,
    longest: int = 1 << 20,
    seed: int = 0,
) -> Iterator[PlannedRequest]:
    """A trace's requests with tenants and models, which it has not: each new conversation draws
    one, and what continues a conversation has the same.

    `speed` divides the times between requests. `shrink` divides all lengths, of blocks too, so that
    prompts share what they did. Prompts are cut at `longest` tokens.
    """
    rng, pieces = random.Random(f"{seed}:replay"), _Pieces()
    owners: dict[int, tuple[str, str]] = {}
    for row in rows:
        # The first block is a system prompt that thousands of conversations share.
        known = (owners[block] for block in reversed(row.blocks[1:]) if block in owners)
        who = next(known, None) or choice.draw(rng)
        owners.update((block, who) for block in row.blocks[1:] if block not in owners)
        tokens = min(longest, max(1, row.prompt_tokens // shrink))
        held = _cut(row.blocks, tokens, max(1, BLOCK_TOKENS // shrink)) or (pieces.fresh(tokens),)
        output = max(1, row.output_tokens // shrink)
        yield PlannedRequest(row.at_s / speed, *who, held, output)


def _cut(blocks: Sequence[int], tokens: int, size: int) -> tuple[PromptPiece, ...]:
    """Blocks of `size` tokens as pieces of a prompt of `tokens`; the last one may be shorter."""
    lengths = (min(size, tokens - start) for start in range(0, tokens, size))
    return tuple(zip(blocks, lengths, strict=False))
