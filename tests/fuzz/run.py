"""Random requests on one engine, a few at a time, and neighbours that they must not affect."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from inference.agent.engines.engine import Engine, LocalAdapter
from inference.errors import RequestError
from tests.engine.driving import ask, work_of
from tests.fuzz.bodies import STEP, Fuzz, made

AT_ONCE = 12
HANGS_S = 120.0
"""Seconds. A request that takes longer counts as hung."""


@dataclass
class Report:
    """The results of a run."""

    answers: Counter[str] = field(default_factory=Counter)
    """By how they ended: an error's code, `left`, or the finish reason."""
    findings: list[str] = field(default_factory=list)
    """What must not happen: a dead engine, an error that is not the request's own, a hung request,
    a neighbour with other tokens."""
    compared: int = 0
    """Number of answers of neighbours."""


@dataclass(frozen=True)
class Neighbour:
    """Repeats one greedy question; `expected` are its tokens on a quiet engine."""

    adapter: LocalAdapter | None
    prompt: list[int]
    expected: list[int]


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
        return Neighbour(adapter, prompt, await self._tokens(adapter, prompt))

    async def _tokens(self, adapter: LocalAdapter | None, prompt: list[int]) -> list[int]:
        asked: dict[str, Any] = {"adapter": adapter, "prompt": prompt, "max_tokens": 32}
        salt = f"neighbour-{next(self._salts)}"
        answer = await ask(self._engine, "completion", **asked, salt=salt, wants_ids=True)
        return answer.ids[0]

    async def _compare(self, neighbour: Neighbour, over: asyncio.Event) -> None:
        while self._engine.alive:
            try:
                tokens = await self._tokens(neighbour.adapter, neighbour.prompt)
            except Exception as error:
                self._find(f"a neighbour failed: {error!r}", list(self._running.items()))
                return
            self.report.compared += 1
            if tokens != neighbour.expected:
                what = f"a neighbour got {tokens} instead of {neighbour.expected}"
                self._find(what, list(self._running.items()))
            if over.is_set():
                return

    async def _client(self, numbers: Any) -> None:
        for number in numbers:
            if not self._engine.alive:
                return
            fuzz = made(self._seed, number, len(self._adapters))
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
            self.report.answers[ended] += 1

    async def _ask(self, fuzz: Fuzz) -> str:
        adapter = None if fuzz.adapter is None else self._adapters[fuzz.adapter]
        work = work_of(fuzz.kind, adapter=adapter, salt=fuzz.salt)
        work = replace(work, body=fuzz.body)
        async with aclosing(self._engine.generate(work)) as outputs:
            async for output in outputs:
                if work.meter.completion_tokens > (fuzz.leaves_after or 1 << 30):
                    return "left"
                if output.finish_reason is not None:
                    ended = output.finish_reason
        return ended

    def _find(self, what: str, running: Sequence[tuple[int, Fuzz]]) -> None:
        asked = "\n".join(f"    {number}: {_short(fuzz)}" for number, fuzz in running)
        self.report.findings.append(f"{what}\n{asked}")


def _short(fuzz: Fuzz) -> str:
    body = {name: value for name, value in fuzz.body.items() if name not in ("prompt", "messages")}
    prompt = len(fuzz.body.get("prompt") or fuzz.body["messages"][0]["content"])
    return f"{fuzz.kind}, prompt of {prompt}, adapter {fuzz.adapter}: {body}"
