"""The recorder knows of every token before the agent does, and its file survives a kill."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.engine import EngineOutput, EngineWork, Meter
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.link.engine_info import EngineStats
from inference.operations.chat import CHAT
from tests.inference.samples import MODEL
from tests.labs.chaos.judging.sources.recorder import Line, Record, Recorded


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Recorded]:
    recorded = Recorded(SyntheticEngine(MODEL), Record(tmp_path / "records" / "one.jsonl"))
    yield recorded
    await recorded.close()


def work(id: str = "r1", **fields: object) -> EngineWork:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "stream": True}
    return EngineWork(id, CHAT, body | {"ignore_eos": True} | fields, MODEL.name, "salt")


def lines(tmp_path: Path) -> list[Line]:
    return list(Record.read(tmp_path / "records" / "one.jsonl"))


async def test_each_step_is_recorded_before_it_is_handed_on(
    engine: Recorded, tmp_path: Path
) -> None:
    request = work()
    async with aclosing(engine.generate(request)) as outputs:
        async for _ in outputs:
            assert lines(tmp_path)[-1].completion_tokens == request.meter.completion_tokens
    last = lines(tmp_path)[-1]
    assert request.meter == Meter(last.prompt_tokens, 0, 6)
    assert last == Line("r1", last.prompt_tokens, 0, 6, handed_on=6, finish_reason="length")


async def test_unstreamed_requests_are_recorded_after_each_step(
    engine: Recorded, tmp_path: Path
) -> None:
    async with aclosing(engine.generate(work(stream=False))) as outputs:
        assert len([output async for output in outputs]) == 2
    counted = [line.completion_tokens for line in lines(tmp_path)]
    assert counted == sorted(counted)
    assert {1, 2, 3, 4, 5, 6} <= set(counted)


async def test_an_aborted_request_ends_with_what_was_generated(
    engine: Recorded, tmp_path: Path
) -> None:
    request = work(n=2)
    async with aclosing(engine.generate(request)) as outputs:
        await anext(outputs)
    assert request.meter.completion_tokens == 2
    assert lines(tmp_path)[-1].completion_tokens == 2
    assert not lines(tmp_path)[-1].finish_reason


async def test_the_recorder_delegates_to_the_engine(engine: Recorded) -> None:
    assert engine.info == MODEL
    assert engine.step_tokens == engine.inside.step_tokens
    assert engine.alive
    assert engine.stats() == EngineStats()
    await engine.close()
    assert not engine.alive


class Miscounting:
    """An engine that hands on a token without counting it."""

    info, alive = MODEL, True

    async def generate(self, work: EngineWork) -> AsyncIterator[EngineOutput]:
        work.meter.prompt_tokens = 3
        work.meter.completion_tokens += 1
        yield EngineOutput("ab", tokens=2, finish_reason="stop")


async def test_what_is_handed_on_is_counted_apart(tmp_path: Path) -> None:
    miscounting: Any = Miscounting()  # only the part of an engine that is used here
    engine = Recorded(miscounting, Record(tmp_path / "records" / "one.jsonl"))
    assert [output.tokens async for output in engine.generate(work())] == [2]
    assert lines(tmp_path)[-1] == Line("r1", 3, 0, 1, handed_on=2, finish_reason="stop")


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    record = Record(path)
    for tokens in (1, 2):
        record.note(Line("r1", completion_tokens=tokens))
    path.write_bytes(path.read_bytes()[:-3])
    assert [line.completion_tokens for line in Record.read(path)] == [1]
