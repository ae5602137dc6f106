"""An engine that sleeps while it has nothing to do, and leaves its device's memory to others.

Requests that come meanwhile wait until it is awake, which takes seconds. Its prefix cache is empty
then; its adapters are still loaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import Context
from typing import Protocol

import msgspec
import structlog

from inference.agent.engines.cache_news import News
from inference.agent.engines.engine import (
    Engine,
    EngineOutput,
    EngineProbeReport,
    EngineWork,
    LoadReport,
    LocalAdapter,
)
from inference.errors import EngineFailed
from inference.link.engine_info import EngineStats, ModelInfo
from inference.process.supervision import in_background

log = structlog.get_logger()


class Sleeper(Engine, Protocol):
    """An engine that can sleep."""

    async def sleep(self) -> None:
        """Give the device's memory back; nothing runs, and nothing is asked until `wake`."""
        ...

    async def wake(self) -> None:
        """Take the memory again, with the weights and adapters as they were."""
        ...


class SleepingEngine:
    """Puts an engine to sleep once nothing has used it for `after_s`; see
    `inference.agent.engines.engine.Engine` for the contract."""

    def __init__(self, engine: Sleeper, after_s: float) -> None:
        self._engine, self._after_s = engine, after_s
        self._users = 0
        self._asleep = self._broken = False
        self._changing = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self._timer = self._set_timer()

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def step_tokens(self) -> int:
        return self._engine.step_tokens

    @property
    def alive(self) -> bool:
        """As the contract says; also False if it did not fall asleep or wake up."""
        return self._engine.alive and not self._broken

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """As the contract says."""
        async with self._awake():
            return await self._engine.load(adapter)

    async def unload(self, adapter: LocalAdapter) -> None:
        """As the contract says."""
        async with self._awake():
            await self._engine.unload(adapter)

    async def probe(
        self, adapter: LocalAdapter, rows: Sequence[list[int]] = ()
    ) -> EngineProbeReport:
        """As the contract says."""
        async with self._awake():
            return await self._engine.probe(adapter, rows)

    async def ping(self) -> None:
        """As the contract says; the core replies while it sleeps, too."""
        await self._engine.ping()

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        """As the contract says."""
        async with self._awake(), aclosing(self._engine.generate(work)) as outputs:
            async for output in outputs:
                yield output

    def stats(self) -> EngineStats:
        """As the contract says."""
        return msgspec.structs.replace(self._engine.stats(), asleep=self._asleep)

    def cache_news(self) -> list[News] | None:
        """As the contract says."""
        return self._engine.cache_news()

    async def close(self) -> None:
        """As the contract says."""
        self._timer.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._engine.close()

    @asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        """Keeps the engine awake meanwhile."""
        self._users += 1
        self._timer.cancel()
        try:
            if self._asleep or self._changing.locked():
                # A request that is cancelled does not interrupt it: others may wait for it too.
                await asyncio.shield(in_background(self._background, self._wake(), "wake"))
            if self._broken:
                raise EngineFailed("The engine did not wake up.")
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._timer = self._set_timer()

    def _set_timer(self) -> asyncio.TimerHandle:
        def due() -> None:
            in_background(self._background, self._sleep(), "sleep")

        # In a context of its own: it is nobody's request.
        return asyncio.get_running_loop().call_later(self._after_s, due, context=Context())

    async def _sleep(self) -> None:
        async with self._changing:
            if not self._users and self.alive:
                self._asleep = True
                await self._change(self._engine.sleep, "engine_asleep")

    async def _wake(self) -> None:
        async with self._changing:
            if self._asleep:
                await self._change(self._engine.wake, "engine_awake")
                self._asleep = False

    async def _change(self, step: Callable[[], Awaitable[None]], done: str) -> None:
        began = time.monotonic()
        try:
            await step()
        except Exception:
            self._broken = True
            log.exception("engine_sleep_failed")
        else:
            log.info(done, took_s=round(time.monotonic() - began, 3))
