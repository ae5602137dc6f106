"""What only the synthetic engine does: it fails on demand."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from inference.agent.engines.engine import LocalAdapter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.errors import AdapterLoadFailed, EngineFailed, InvalidRequest
from tests.engine.driving import ask, run, running_after_a_step, work_of
from tests.engine.factory import AdapterFactory
from tests.inference.rig import until


@pytest.fixture
def synthetic_engine(profile: EngineProfile) -> SyntheticEngine:
    return SyntheticEngine.of(profile)


@pytest.fixture(scope="module")
def adapter(factory: AdapterFactory) -> LocalAdapter:
    return factory.make("acme", seed=9)


async def test_the_answer_names_the_adapter_and_repeats_the_question(
    synthetic_engine: SyntheticEngine, adapter: LocalAdapter
) -> None:
    await synthetic_engine.load(adapter)
    answer = await ask(synthetic_engine, adapter=adapter, max_tokens=100, ignore_eos=False)
    assert answer.text == f"{adapter.ref.name}: Who are you, and what can you do?"
    assert answer.finish_reason == "stop"


async def test_loads_fail_by_name(synthetic_engine: SyntheticEngine, adapter: LocalAdapter) -> None:
    synthetic_engine.behaviour = Behaviour(fail_loads=frozenset({adapter.ref.name}))
    with pytest.raises(AdapterLoadFailed):
        await synthetic_engine.load(adapter)
    synthetic_engine.behaviour = Behaviour()
    assert (await synthetic_engine.load(adapter)).weight_bytes > 0


async def test_probes_find_what_they_are_told(
    synthetic_engine: SyntheticEngine, adapter: LocalAdapter
) -> None:
    named = frozenset({adapter.ref.name})
    synthetic_engine.behaviour = Behaviour(inert=named)
    assert (await synthetic_engine.probe(adapter)).max_logprob_delta == 0
    synthetic_engine.behaviour = Behaviour(corrupt=named)
    assert not (await synthetic_engine.probe(adapter)).finite


async def test_requests_fail_after_so_many_tokens(synthetic_engine: SyntheticEngine) -> None:
    synthetic_engine.behaviour = Behaviour(fail_after_tokens=3)
    work = work_of(max_tokens=10, stream=True)
    with pytest.raises(EngineFailed):
        async for _ in synthetic_engine.generate(work):
            pass
    assert work.meter.completion_tokens <= 3
    assert synthetic_engine.stats().running == 0
    assert synthetic_engine.alive


async def test_requests_stall_after_so_many_tokens_until_they_may_go_on(
    synthetic_engine: SyntheticEngine,
) -> None:
    synthetic_engine.behaviour = Behaviour(stall_after_tokens=3)
    work = work_of(max_tokens=10)
    running = asyncio.create_task(run(synthetic_engine, work))
    await until(lambda: work.meter.completion_tokens == 3)
    assert await running_after_a_step(synthetic_engine) == 1
    assert work.meter.completion_tokens == 3
    synthetic_engine.behaviour = Behaviour()
    assert (await running).text and work.meter.completion_tokens == 10


async def test_a_busy_process_does_not_catch_up_on_missed_ticks(profile: EngineProfile) -> None:
    engine = SyntheticEngine.of(profile, tokens_per_second=1000)
    async for output in engine.generate(work_of(max_tokens=10, stream=True)):
        assert output.tokens == 1
        time.sleep(0.005)  # noqa: ASYNC251


async def test_a_dead_engine_fails_running_waiting_and_new_requests(profile: EngineProfile) -> None:
    engine = SyntheticEngine.of(replace(profile, max_num_seqs=1), tokens_per_second=1)
    running = engine.generate(work_of(max_tokens=100, stream=True))
    await anext(running)
    waiting = asyncio.create_task(ask(engine, max_tokens=100))
    await asyncio.sleep(0)  # lets it submit
    assert (engine.stats().running, engine.stats().waiting) == (1, 1)
    engine.die()
    with pytest.raises(EngineFailed):
        await anext(running)
    with pytest.raises(EngineFailed):
        await waiting
    assert not engine.alive
    with pytest.raises(EngineFailed):
        await ask(engine)


async def test_waiting_requests_start_by_priority(profile: EngineProfile) -> None:
    engine = SyntheticEngine.of(replace(profile, max_num_seqs=1))
    order: list[int] = []

    async def one(priority: int) -> None:
        async for _ in engine.generate(replace(work_of(max_tokens=20), priority=priority)):
            pass
        order.append(priority)

    await asyncio.gather(*(one(priority) for priority in (0, 3, 1, 2)))
    assert order == [0, 1, 2, 3]


async def test_it_does_not_pretend_to_have_tools(synthetic_engine: SyntheticEngine) -> None:
    with pytest.raises(InvalidRequest, match="synthetic"):
        await ask(synthetic_engine, tools=[{"type": "function"}])
