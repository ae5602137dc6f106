"""An engine that records what each request cost, before any other part learns of it.

The recorder does not depend on the journal: it has its own file, with one line per engine step of a
request, each written by one `write`. A figure is recorded before the agent's meter shows it, so
whatever the agent did with a token before it was killed, the recorder has that token.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inference.agent.engines.cache_news import News
from inference.agent.engines.engine import (
    Engine,
    EngineOutput,
    EngineProbeReport,
    EngineWork,
    LoadReport,
    LocalAdapter,
    Meter,
)
from inference.link.engine_info import EngineStats, ModelInfo


class Line(msgspec.Struct, array_like=True, frozen=True):
    """The state of one attempt: what the engine counted, and the output tokens it handed on, both
    including what it inherited.

    `finish_reason` is the engine's own; empty until it is given.
    """

    id: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    handed_on: int = 0
    finish_reason: str = ""
    attempt: int = 1


class Record:
    """An append-only file of lines."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, line: Line) -> None:
        """Once this returns, a `kill -9` cannot lose the line."""
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    @staticmethod
    def read(path: Path) -> Iterator[Line]:
        """The lines of a file, without a last one that a kill has torn."""
        *whole, _ = path.read_bytes().split(b"\n")
        return (msgspec.json.decode(line, type=Line) for line in whole)


class WatchedMeter(Meter):
    """The meter that the engine writes to; the agent's own meter is updated after the record.

    In each step the engine raises `completion_tokens` last, or `prompt_tokens` if it pools.
    """

    def __init__(self, work: EngineWork, record: Record) -> None:
        agents = work.meter
        self.id, self.attempt, self.agents, self.record = work.id, work.attempt, agents, record
        self.handed_on = agents.completion_tokens
        self.steps = "prompt_tokens" if work.operation.pools else "completion_tokens"
        super().__init__(
            agents.prompt_tokens,
            agents.cached_tokens,
            agents.completion_tokens,
            agents.reasoning_tokens,
        )

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in Meter.__slots__:
            if name == self.steps and value:
                self.record.note(self.line())
            setattr(self.agents, name, value)

    def line(self, finish_reason: str = "") -> Line:
        """The present state."""
        return Line(
            self.id,
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            self.handed_on,
            finish_reason,
            self.attempt,
        )


@dataclass(slots=True)
class Recorded:
    """Wraps the engine `inside` with the recorder; same contract."""

    inside: Engine
    record: Record

    @property
    def info(self) -> ModelInfo:
        return self.inside.info

    @property
    def step_tokens(self) -> int:
        return self.inside.step_tokens

    @property
    def alive(self) -> bool:
        return self.inside.alive

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        return await self.inside.load(adapter)

    async def unload(self, adapter: LocalAdapter) -> None:
        await self.inside.unload(adapter)

    async def probe(
        self, adapter: LocalAdapter, rows: Sequence[list[int]] = ()
    ) -> EngineProbeReport:
        return await self.inside.probe(adapter, rows)

    async def ping(self) -> None:
        await self.inside.ping()

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        meter = WatchedMeter(work, self.record)
        async with aclosing(self.inside.generate(replace(work, meter=meter))) as outputs:
            async for output in outputs:
                meter.handed_on += output.tokens
                if output.finish_reason is not None:
                    self.record.note(meter.line(output.finish_reason))
                yield output

    def cache_news(self) -> list[News] | None:
        return self.inside.cache_news()

    def stats(self) -> EngineStats:
        return self.inside.stats()

    async def close(self) -> None:
        await self.inside.close()
