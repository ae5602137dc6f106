"""When an engine sleeps, and that what needs it waits until it is awake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from inference.agent.engines.engine import EngineOutput, EngineWork, LocalAdapter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.sleeping import SleepingEngine
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.errors import EngineFailed
from tests.engine.driving import ask, run, work_of
from tests.engine.factory import AdapterFactory
from tests.inference.rig import until


class Bed(SyntheticEngine):
    """Records what it does; anything but a wake-up fails while it sleeps."""

    def __init__(self, profile: EngineProfile) -> None:
        engine = SyntheticEngine.of(profile, tokens_per_second=500.0)
        super().__init__(engine.info, engine.behaviour)
        self.asleep, self.sleeps, self.wakes = False, 0, 0
        self.may_wake = asyncio.Event()
        self.may_wake.set()
        self.fault: Exception | None = None

    async def sleep(self) -> None:
        assert not self.asleep and not self._running
        if self.fault:
            raise self.fault
        self.asleep, self.sleeps = True, self.sleeps + 1

    async def wake(self) -> None:
        assert self.asleep
        await self.may_wake.wait()
        if self.fault:
            raise self.fault
        self.asleep, self.wakes = False, self.wakes + 1

    async def _load(self, adapter: LocalAdapter) -> None:
        assert not self.asleep
        await super()._load(adapter)

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        assert not self.asleep
        async with aclosing(super().generate(work)) as outputs:
            async for output in outputs:
                yield output


@pytest.fixture
def bed(profile: EngineProfile) -> Bed:
    return Bed(profile)


@pytest.fixture
async def engine(bed: Bed) -> AsyncIterator[SleepingEngine]:
    """Sleeps as soon as it has nothing to do."""
    engine = SleepingEngine(bed, after_s=0)
    yield engine
    await engine.close()


async def test_it_sleeps_when_idle_and_wakes_for_a_request(
    engine: SleepingEngine, bed: Bed
) -> None:
    await until(lambda: engine.stats().asleep)
    assert (await ask(engine, max_tokens=3)).meter.completion_tokens == 3
    assert (bed.wakes, engine.stats().asleep) == (1, False)
    await until(lambda: engine.stats().asleep)
    assert bed.sleeps == 2 and engine.alive
    await engine.ping()
    assert bed.wakes == 1


async def test_requests_that_come_meanwhile_wait_for_one_wake_up(
    engine: SleepingEngine, bed: Bed
) -> None:
    await until(lambda: bed.asleep)
    bed.may_wake.clear()
    asked = [asyncio.create_task(ask(engine, max_tokens=2)) for _ in range(3)]
    await asyncio.sleep(0)
    asked[0].cancel()  # does not interrupt it: the others wait, too
    with pytest.raises(asyncio.CancelledError):
        await asked[0]
    bed.may_wake.set()
    answers = await asyncio.gather(*asked[1:])
    assert [one.meter.completion_tokens for one in answers] == [2, 2] and bed.wakes == 1


async def test_it_stays_awake_while_anything_runs(engine: SleepingEngine, bed: Bed) -> None:
    async with aclosing(engine.generate(work_of(max_tokens=1000, stream=True))) as outputs:
        await anext(outputs)
        sleeps = bed.sleeps
        await ask(engine, max_tokens=2)
        await asyncio.sleep(0)
        assert bed.sleeps == sleeps and not engine.stats().asleep
    await until(lambda: bed.asleep)


@pytest.mark.parametrize("use", ["load", "unload", "probe"])
async def test_adapters_wake_it(
    engine: SleepingEngine, bed: Bed, factory: AdapterFactory, use: str
) -> None:
    adapter = factory.make("acme", seed=9)
    await until(lambda: bed.asleep)
    await getattr(engine, use)(adapter)
    assert bed.wakes == 1


async def test_one_that_does_not_wake_up_is_dead(engine: SleepingEngine, bed: Bed) -> None:
    await until(lambda: bed.asleep)
    bed.fault = RuntimeError("out of memory")
    with pytest.raises(EngineFailed, match="did not wake up"):
        await run(engine, work_of())
    assert not engine.alive


async def test_one_that_does_not_fall_asleep_is_dead(bed: Bed) -> None:
    bed.fault = RuntimeError("no")
    engine = SleepingEngine(bed, after_s=0)
    await until(lambda: not engine.alive)
    await engine.close()
