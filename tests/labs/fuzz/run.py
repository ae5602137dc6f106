"""Random requests on one engine, a few at a time, and neighbours that they must not affect."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from inference.agent.engines.engine import Engine, LocalAdapter
from inference.errors import RequestError
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.registry import OPERATIONS
from tests.engine.driving import Answer, ask, run, work_of, written
from tests.inference.operations.items import check_order
from tests.labs.fuzz.bodies import Fuzz, made
from tests.labs.fuzz.kinds import STEP

AT_ONCE = 12
HANGS_S = 120.0
"""A request that takes longer never ends."""
MAX_DRIFT = 1e-3
"""Of a vector's numbers, which depend on what is computed beside them; tokens do not."""
SHOWN = 400
"""Characters of a field in a finding."""


@dataclass
class Report:
    """The results of a run."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By operation, and by how they ended: an error's code, `left`, or the finish reason."""
    findings: list[str] = field(default_factory=list)
    """What must not be: a dead engine, an error that is not the request's own, a request that
    hangs, an answer that is not as the SDKs' types say, a neighbour with other tokens."""
    compared: int = 0
    """Number of answers of neighbours."""


@dataclass(frozen=True)
class Neighbour:
    """Asks one greedy question again and again; `expected` is the answer on a quiet engine: tokens,
    or a vector of a model that embeds."""

    adapter: LocalAdapter | None
    prompt: list[int]
    expected: list[float]


class Run:
    """A run of requests of `seed`, on an engine that has these adapters loaded."""

    def __init__(self, engine: Engine, adapters: Sequence[LocalAdapter], seed: int) -> None:
        self._engine, self._adapters, self._seed = engine, adapters, seed
        self.report = Report()
        self._salts = count()
        self._running: dict[int, Fuzz] = {}

    async def run(self, requests: int, first: int = 0) -> Report:
        """Send the requests from number `first` on; ends early if the engine dies."""
        neighbours = [await self._neighbour(at) for at in range(len(self._adapters) + 1)]
        numbers = iter(range(first, first + requests))
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for neighbour in neighbours:
                tasks.create_task(self._compare(neighbour, over))
            async with asyncio.TaskGroup() as clients:
                for _ in range(AT_ONCE):
                    clients.create_task(self._client(numbers))
            over.set()
        return self.report

    async def _neighbour(self, at: int) -> Neighbour:
        """The neighbour number `at`. Its prompt is either split into chunks or fits into one step
        with others."""
        adapter = self._adapters[at - 1] if at else None
        prompt = [8 + (11 * i + at) % 380 for i in range(STEP + 60 if at % 2 else 40)]
        return Neighbour(adapter, prompt, await self._told(adapter, prompt))

    async def _told(self, adapter: LocalAdapter | None, prompt: list[int]) -> list[float]:
        salt = f"neighbour-{next(self._salts)}"
        if EMBEDDINGS.name in self._engine.info.operations:
            work = work_of(EMBEDDINGS.name, adapter=adapter, salt=salt)
            answer = await run(self._engine, replace(work, body={"input": prompt}))
            return list(answer.response["data"][0]["embedding"])
        asked: dict[str, Any] = {"adapter": adapter, "prompt": prompt, "max_tokens": 32}
        answer = await ask(self._engine, "completion", **asked, salt=salt, wants_ids=True)
        return list(answer.ids[0])

    async def _compare(self, neighbour: Neighbour, over: asyncio.Event) -> None:
        while self._engine.alive:
            try:
                told = await self._told(neighbour.adapter, neighbour.prompt)
            except Exception as error:
                self._find(f"a neighbour failed: {error!r}", list(self._running.items()))
                return
            self.report.compared += 1
            if not _same(told, neighbour.expected):
                what = f"a neighbour got {told} instead of {neighbour.expected}"
                self._find(what, list(self._running.items()))
            if over.is_set():
                return

    async def _client(self, numbers: Any) -> None:
        for number in numbers:
            if not self._engine.alive:
                return
            fuzz = made(self._seed, number, len(self._adapters), self._engine.info.operations)
            self._running[number] = fuzz
            try:
                async with asyncio.timeout(HANGS_S):
                    ended = await self._ask(fuzz)
            except RequestError as error:
                ended = error.code
            except Exception as error:
                ended = type(error).__name__
                found = self._running.items() if not self._engine.alive else [(number, fuzz)]
                self._find(f"{error!r}", list(found))
            del self._running[number]
            self.report.answers[fuzz.kind, ended] += 1

    async def _ask(self, fuzz: Fuzz) -> str:
        """As a gateway and its engine do, from the bytes of the body to those of the answer."""
        operation = OPERATIONS.named(fuzz.kind)
        call = operation.parse(json.dumps(fuzz.body).encode())
        adapter = None if fuzz.adapter is None else self._adapters[fuzz.adapter]
        work = work_of(fuzz.kind, adapter=adapter, salt=fuzz.salt)
        answer = Answer(replace(work, body=operation.read(call.body, None)))
        leaves_after = math.inf if fuzz.leaves_after is None else fuzz.leaves_after
        async with aclosing(self._engine.generate(answer.work)) as outputs:
            async for output in outputs:
                answer.outputs.append(output)
                if answer.meter.completion_tokens >= leaves_after:
                    return "left"
        told = written(call, answer)
        if call.stream and fuzz.kind == "responses":
            check_order(told)
        return answer.finish_reason or ""

    def _find(self, what: str, running: Sequence[tuple[int, Fuzz]]) -> None:
        asked = "\n".join(f"    {number}: {_short(fuzz)}" for number, fuzz in running)
        self.report.findings.append(f"{what}\n{asked}")


def _same(told: list[float], expected: list[float]) -> bool:
    pairs = zip(told, expected, strict=False)
    return len(told) == len(expected) and all(abs(a - b) <= MAX_DRIFT for a, b in pairs)


def _short(fuzz: Fuzz) -> str:
    body = json.dumps({name: _told(value) for name, value in fuzz.body.items()})
    return f"{fuzz.kind}, adapter {fuzz.adapter}, leaves after {fuzz.leaves_after}: {body}"


def _told(value: Any) -> Any:
    said = json.dumps(value)
    return value if len(said) < SHOWN else f"{len(said)} characters: {said[:SHOWN]}"
