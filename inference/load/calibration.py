"""Measures how fast an engine is, for `inference.sizing`: prompts of some lengths one at a time,
and answers to several numbers of requests at once, whose prompts are in the cache by then.

Nothing else may be sent to the engine meanwhile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from inference.load.callers import LoadCaller
from inference.load.planned import PlannedRequest
from inference.load.sending import LoadEndpoint, LoadOutcome, LoadRefused, LoadRun
from inference.sizing import EngineSpeed

SHORT_TOKENS = 32
"""Of the shorter prompts; the longer ones have as many as the traffic's longest."""
ANSWER_TOKENS = 48
TIMEOUT_S = 600.0
StepTime = tuple[int, float, float]
"""Sequences, the tokens that each of them holds, and the seconds of their step."""
PromptTime = tuple[int, float]
"""Tokens that were computed, and the seconds to the first token."""


def fitted(
    steps: Sequence[StepTime], prompts: Sequence[PromptTime], prompt_tokens: int
) -> EngineSpeed:
    """The speed with the smallest relative errors. There must be steps of a single sequence, and of
    two lengths; and prompts of two lengths, of which a step computes `prompt_tokens` at most."""
    counts = sorted({n for n, *_ in steps})
    taken = [s for *_, s in steps]
    rows = [(*(float(n == count) for count in counts), n * held) for n, held, _ in steps]
    *by_count, context_s = _least_squares(rows, taken, taken)
    speed = EngineSpeed(
        dict(zip(counts, by_count, strict=True)), context_s, 0.0, prompt_tokens, 0.0
    )
    taken = [s for _, s in prompts]
    besides = [
        s - math.ceil(tokens / prompt_tokens) * speed.step(1, tokens) for tokens, s in prompts
    ]
    request_s, prompt_s = _least_squares([(1.0, tokens) for tokens, _ in prompts], besides, taken)
    return replace(speed, prompt_s=prompt_s, request_s=request_s)


def _least_squares(
    rows: Sequence[tuple[float, ...]], seconds: Sequence[float], taken: Sequence[float]
) -> list[float]:
    """A coefficient of each column; what would be less than 0 is left out. Errors are relative to
    `taken`."""
    weights = 1 / np.array(taken)
    matrix, wanted = np.array(rows) * weights[:, None], np.array(seconds) * weights
    columns = list(range(matrix.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(matrix[:, columns], wanted, rcond=None)
        if (found >= 0).all():
            break
        columns.pop(int(found.argmin()))
    named = dict(zip(columns, found.tolist(), strict=True))
    return [named.get(column, 0.0) for column in range(matrix.shape[1])]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Asks `callers` in turn for each of their models. `streams` are run at once at most, `longest`
    is the tokens of the longest prompt, a step computes `prompt_tokens` of one at most, and each
    measurement is made `rounds` times."""

    endpoint: LoadEndpoint
    callers: Sequence[LoadCaller]
    streams: int
    longest: int
    prompt_tokens: int
    rounds: int = 3

    async def measure(self, tell: Callable[[str], None]) -> EngineSpeed:
        """Send everything; `tell` is given each measurement in words.

        Raises:
            LoadRefused: a request was not answered.
        """
        ids = itertools.count()
        prompts = []
        for tokens in self._lengths:
            found = [await self._prompt(tokens, ids) for _ in range(self.rounds)]
            prompts += found
            taken = median(s for _, s in found)
            tell(f"a prompt of {tokens} tokens: {1000 * taken:.1f} ms to the first token")
        steps = []
        for held, count in itertools.product(self._lengths, self._counts):
            repeated = [await self._steps(count, held, ids) for _ in range(self.rounds)]
            steps += repeated
            taken = median(s for *_, s in repeated)
            tell(f"{count} sequences of {held} tokens: {1000 * taken:.1f} ms for a step")
        return fitted(steps, prompts, self.prompt_tokens)

    @property
    def _lengths(self) -> list[int]:
        return [SHORT_TOKENS, (SHORT_TOKENS + self.longest) // 2, self.longest]

    @property
    def _counts(self) -> list[int]:
        """1, 2, 4 and so on."""
        powers = (1 << exponent for exponent in range(self.streams.bit_length()))
        return sorted({*powers, self.streams})

    async def _prompt(self, tokens: int, ids: Iterator[int]) -> PromptTime:
        (answered,) = await self._sent([next(ids)], tokens, 1)
        return answered.prompt_tokens - answered.cached_tokens, answered.ttft_s

    async def _steps(self, count: int, tokens: int, ids: Iterator[int]) -> StepTime:
        own = [next(ids) for _ in range(count)]
        await self._sent(own, tokens, 1)
        answered = await self._sent(own, tokens, ANSWER_TOKENS)
        taken = median(one.tpot_s or 0.0 for one in answered)
        if not taken:
            raise LoadRefused("whole answers came at once: the machine is too busy to measure it")
        return count, answered[0].prompt_tokens + ANSWER_TOKENS / 2, taken

    async def _sent(self, ids: Sequence[int], prompt: int, output: int) -> list[LoadOutcome]:
        turns = itertools.cycle((one.tenant, model) for one in self.callers for model in one.models)
        plan = [PlannedRequest(0.0, *next(turns), ((id, prompt),), output) for id in ids]
        run = LoadRun(self.endpoint, len(plan), TIMEOUT_S)
        await run.send(plan)
        if bad := next((one for one in run.outcomes if one.code), None):
            raise LoadRefused(f"{bad.code}, for {bad.request.model} of {bad.request.tenant}")
        return run.outcomes
