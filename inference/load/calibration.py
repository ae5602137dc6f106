"""Measures how fast an engine is, for `inference.sizing`: answers to several numbers of requests at
once, whose prompts are in the cache by then, and prompts of some lengths, beside such answers.

Alone a prompt tells little of a busy engine: vLLM computes the only request's prompt in larger
parts than others', and all of a step is of one adapter. Nothing else may be sent to the engine
meanwhile.
"""

from __future__ import annotations

import itertools
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
BEGUN_TOKENS = 12
"""How many tokens of each answer are generated before a prompt is sent beside them."""
TIMEOUT_S = 600.0
StepTime = tuple[int, float, float]
"""Sequences, the tokens that each of them holds, and the seconds of their step."""
PromptTime = tuple[int, float, float]
"""Sequences beside it, its tokens that were computed, and the seconds to the first token."""


def fitted_steps(steps: Sequence[StepTime], prompt_tokens: int) -> EngineSpeed:
    """The speed with the smallest relative errors, in which prompts take no time. There must be
    steps of a single sequence, and of two lengths."""
    counts = sorted({n for n, *_ in steps})
    taken = [s for *_, s in steps]
    rows = [(*(float(n == count) for count in counts), n * held) for n, held, _ in steps]
    *by_count, context_s = _least_squares(rows, taken, taken)
    return EngineSpeed(dict(zip(counts, by_count, strict=True)), context_s, 0.0, prompt_tokens, 0.0)


def fitted(speed: EngineSpeed, prompts: Sequence[PromptTime]) -> EngineSpeed:
    """The speed of these steps with what prompts take, by the smallest relative errors. There must
    be prompts that ran alone, each in one step, and others of two lengths.

    Those beside sequences also wait for a step under way: how long on average is found with them.
    """
    held = SHORT_TOKENS + ANSWER_TOKENS / 2
    rows, besides = [], []
    for beside, tokens, taken_s in prompts:
        rows.append((float(not beside), float(beside > 0), tokens))
        step_s = speed.step(beside + 1, (beside * held + tokens) / (beside + 1))
        besides.append(taken_s - speed.parts(tokens) * step_s)
    request_s, _, prompt_s = _least_squares(rows, besides, [s for *_, s in prompts])
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


def _middle(repeated: Sequence[tuple[int, float, float]]) -> tuple[int, float, float]:
    """The one with the median time: a machine that does other things makes some much longer."""
    return sorted(repeated, key=lambda one: one[-1])[len(repeated) // 2]


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
        steps = []
        for held, count in itertools.product(self._lengths, self._counts):
            steps.append(_middle([await self._steps(count, held, ids) for _ in range(self.rounds)]))
            if not (taken_s := steps[-1][-1]):
                raise LoadRefused("whole answers came at once: the machine is too busy for this")
            tell(f"{count} sequences of {held} tokens: {1000 * taken_s:.1f} ms for a step")
        speed = fitted_steps(steps, self.prompt_tokens)
        prompts = []
        half = self.streams // 2
        for beside, tokens in [(0, SHORT_TOKENS), *((half, tokens) for tokens in self._lengths)]:
            repeated = [
                await self._prompt(speed, beside, tokens, ids, of_step=number / self.rounds)
                for number in range(self.rounds)
            ]
            prompts.append(_middle(repeated))
            taken = f"{1000 * prompts[-1][-1]:.1f} ms to the first token"
            tell(f"a prompt of {tokens} tokens beside {beside} sequences: {taken}")
        return fitted(speed, prompts)

    @property
    def _lengths(self) -> list[int]:
        return [SHORT_TOKENS, (SHORT_TOKENS + self.longest) // 2, self.longest]

    @property
    def _counts(self) -> list[int]:
        """1, 2, 4 and so on."""
        powers = (1 << exponent for exponent in range(self.streams.bit_length()))
        return sorted({*powers, self.streams})

    async def _prompt(
        self, speed: EngineSpeed, beside: int, tokens: int, ids: Iterator[int], *, of_step: float
    ) -> PromptTime:
        """The answers beside it have begun by then, and end after it. It is sent at this part of a
        step, so that rounds meet early and late ones alike."""
        answer = ANSWER_TOKENS + speed.parts(tokens)
        plan = self._planned([next(ids) for _ in range(beside)], SHORT_TOKENS, answer)
        at_s = (BEGUN_TOKENS + of_step) * speed.step(beside, SHORT_TOKENS) if beside else 0.0
        plan += [replace(one, at_s=at_s) for one in self._planned([next(ids)], tokens, 1)]
        *_, answered = await self._sent(plan)
        return beside, answered.prompt_tokens - answered.cached_tokens, answered.ttft_s

    async def _steps(self, count: int, tokens: int, ids: Iterator[int]) -> StepTime:
        own = [next(ids) for _ in range(count)]
        await self._sent(self._planned(own, tokens, 1))
        answered = await self._sent(self._planned(own, tokens, ANSWER_TOKENS))
        taken = median(one.tpot_s or 0.0 for one in answered)
        return count, answered[0].prompt_tokens + ANSWER_TOKENS / 2, taken

    def _planned(self, ids: Sequence[int], prompt: int, output: int) -> list[PlannedRequest]:
        turns = itertools.cycle((one.tenant, model) for one in self.callers for model in one.models)
        return [PlannedRequest(0.0, *next(turns), ((id, prompt),), output) for id in ids]

    async def _sent(self, plan: Sequence[PlannedRequest]) -> list[LoadOutcome]:
        run = LoadRun(self.endpoint, len(plan), TIMEOUT_S)
        await run.send(plan)
        if bad := next((one for one in run.outcomes if one.code), None):
            raise LoadRefused(f"{bad.code}, for {bad.request.model} of {bad.request.tenant}")
        return run.outcomes
