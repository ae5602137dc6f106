"""Requests that wait at the gateway for an engine, against engines that the test plays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from inference.errors import ApiKeyRevoked, InvalidRequest, NoEngine
from inference.gateway.requests import placing, requests
from inference.gateway.requests.candidates import Candidates
from inference.gateway.requests.held import Holding
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.engine_info import AdapterRef, EngineStats
from inference.link.wire import Delta, Done, Wait
from tests.inference.played import Bench, benched
from tests.inference.rig import until
from tests.inference.samples import BASE, GRANT, MODEL, REF

pytestmark = pytest.mark.pure

GLOBEX = replace(GRANT, tenant="globex", tenant_id=2, key_id=2)
HIGH = msgspec.structs.replace(BASE, adapter=msgspec.structs.replace(REF, rank=64))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched(holding=Holding(60.0)) as bench:
        yield bench


async def test_the_first_request_waits_for_the_engine_that_it_causes_to_start(
    bench: Bench,
) -> None:
    heard: list[Wait] = []
    stream = bench.submit(watch=heard.append)
    assert bench.hub.held == {"base": 1} and heard == [Wait("r1", "held")]
    engine = await bench.join()
    asked = await engine.asked()
    assert (asked.id, asked.attempt) == ("r1", 1) and asked.timeout_s < 9
    assert bench.hub.held == {}
    engine.say(Done("r1", Usage(5, 0, 1), "stop"))
    assert isinstance(await stream.read(), Done)
    assert bench.limits.settled == {"r1": Usage(5, 0, 1)} and bench.hub.moves == {}


async def test_they_start_in_order(bench: Bench) -> None:
    for i in range(3):
        bench.submit(f"a{i}", lane="interactive")
    bench.submit("b", lane="batch", grant=GLOBEX)
    bench.submit("g0", lane="interactive", grant=GLOBEX)
    bench.submit("g1", lane="interactive", grant=GLOBEX)
    engine = await bench.join()
    order = [(await engine.asked()).id for _ in range(6)]
    assert order == ["a0", "g0", "a1", "g1", "a2", "b"]


COUNT = 256


async def test_what_waiting_costs_does_not_grow_with_what_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is for another adapter, of another rank, of another tenant: none can stand for
    another."""
    tried, turn, choose = Counter[int](), 0, Candidates.choose

    def counted(self: Candidates, *args: Any, **options: Any) -> Any:
        tried[turn] += 1
        return choose(self, *args, **options)

    monkeypatch.setattr(Candidates, "choose", counted)
    other = await bench.join("other", model=msgspec.structs.replace(MODEL, name="other"))
    for i in range(COUNT):
        ref = AdapterRef(f"t{i}/a@{i:064x}", f"{i:064x}", 17 + i)
        target = msgspec.structs.replace(BASE, adapter=ref)
        grant = replace(GRANT, tenant=f"t{i}", tenant_id=i, key_id=i)
        bench.submit(f"r{i}", target=target, grant=grant)
    assert tried.total() == COUNT and bench.hub.held == {"base": COUNT}
    for _ in range(8):
        other.say(wire.Stats(EngineStats()))
    await until(lambda: other.all_read)
    assert tried.total() == COUNT, "statistics are no reason to look"
    await bench.join("small")
    while tried.total() < 2 * COUNT:
        turn += 1
        await asyncio.sleep(0)
    assert max(count for one, count in tried.items() if one) <= 2 * requests.TRIED_AT_ONCE
    assert bench.hub.held == {"base": COUNT}
    able = await bench.join("able", model=msgspec.structs.replace(MODEL, max_lora_rank=16 + COUNT))
    assert [(await able.asked()).id for _ in range(2)] == ["r0", "r1"]


async def test_a_request_may_leave_between_two_turns_of_placement(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "TRIED_AT_ONCE", 1)
    streams = [bench.submit(f"r{i}") for i in range(3)]
    for _ in range(2):
        bench.hub.set_pools({})
    await asyncio.sleep(0)
    streams[1].cancel("cancelled")
    engine = await bench.join()
    assert [(await engine.asked()).id for _ in range(2)] == ["r0", "r2"]


async def test_a_request_that_no_engine_supports_holds_up_no_other(bench: Bench) -> None:
    engine = await bench.join()
    bench.submit("high", target=HIGH)
    assert bench.hub.held == {"base": 1}
    bench.submit("plain")
    assert (await engine.asked()).id == "plain"
    able = await bench.join("able", model=msgspec.structs.replace(MODEL, max_lora_rank=64))
    assert (await able.asked()).id == "high"


async def test_a_request_with_tools_waits_for_a_parser_and_holds_up_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "TAKEN_UP", 1)
    for id, parsers in {"t0": ("tool",), "t1": ("tool",), "p0": ()}.items():
        bench.submit(id, parsers=parsers)
    model = msgspec.structs.replace(MODEL, revision="r" * 64)
    able = await bench.join("able", model=msgspec.structs.replace(model, parsers={"tool": "x"}))
    assert (await able.asked()).id == "t0"
    plain = await bench.join("plain", model=model)
    assert (await plain.asked()).id == "p0"
    assert bench.hub.held == {"base": 1}
    able.say(Done("t0", Usage(), "stop"))
    assert (await able.asked()).id == "t1"


async def test_a_request_that_can_never_run_does_not_wait(bench: Bench) -> None:
    await bench.join(model=msgspec.structs.replace(MODEL, operations=["embeddings"]))
    with pytest.raises(InvalidRequest, match="/v1/embeddings"):
        bench.submit(kind="chat")
    assert bench.hub.held == {} and not bench.hub.in_flight


async def test_an_engine_takes_up_no_more_than_it_begins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "TAKEN_UP", 4)
    for i in range(10):
        bench.submit(f"r{i}")
    engine = await bench.join()
    assert [(await engine.asked()).id for _ in range(4)] == ["r0", "r1", "r2", "r3"]
    bench.submit("late")
    assert bench.hub.held == {"base": 7}, "it comes after those who wait"
    engine.say(wire.Step([Delta("r0", "x", 1)]))
    engine.say(Done("r1", Usage(), "stop"))
    assert [(await engine.asked()).id for _ in range(2)] == ["r4", "r5"]
    engine.say(wire.Step([Delta("r2", "x", 1)]))
    engine.say(wire.Step([Delta("r3", "x", 1)]))
    assert (await engine.asked()).id == "r6"


async def test_at_the_end_of_its_time_any_engine_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "TAKEN_UP", 1)
    async with benched(holding=Holding(0.02)) as bench:
        engine = await bench.join()
        bench.submit("r0")
        bench.submit("r1")
        assert [(await engine.asked()).id for _ in range(2)] == ["r0", "r1"], "nobody waited yet"
        high = bench.submit("r2", target=HIGH)
        with pytest.raises(NoEngine, match="rank 64") as refused:
            await high.read()
        assert refused.value.retry_after_s
        assert bench.limits.released == ["r2"] and bench.hub.held == {}


async def test_a_held_request_may_start_at_the_end_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "TAKEN_UP", 1)
    async with benched(holding=Holding(0.02)) as bench:
        bench.submit("r0")
        bench.submit("r1")
        engine = await bench.join()
        assert [(await engine.asked()).id for _ in range(2)] == ["r0", "r1"]
        assert bench.hub.held == {}


async def test_an_engine_that_does_not_read_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.join_unread(monkeypatch)
    bench.submit("waits")
    assert bench.hub.held == {"base": 1}
    other = await bench.join("other")
    assert (await other.asked()).id == "waits"


async def test_requests_beyond_the_bounds_are_refused_with_retry_after() -> None:
    async with benched(holding=Holding(60.0, requests=8, bytes=400)) as bench:
        bench.submit("r0", body=b"x" * 50)
        bench.submit("r1", body=b"x" * 50)
        with pytest.raises(NoEngine, match="Too many requests are waiting") as refused:
            bench.submit("r2")
        assert refused.value.retry_after_s == 15.0
        with pytest.raises(NoEngine):
            bench.submit("r3", grant=GLOBEX, body=b"x" * 101)
        bench.submit("r4", grant=GLOBEX)
        assert bench.hub.held == {"base": 3} and bench.hub.in_flight == 3


async def test_a_request_that_cannot_be_held_is_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "TAKEN_UP", 1)
    async with benched(holding=Holding(60.0, requests=8)) as bench:
        for i in range(2):
            bench.submit(f"r{i}")
        engine = await bench.join()
        assert (await engine.asked()).id == "r0"
        bench.submit("r2")
        bench.submit("r3")
        assert (await engine.asked()).id == "r3"


async def test_cancelled_and_revoked_requests_stop_waiting(bench: Bench) -> None:
    left, revoked = bench.submit("r1"), bench.submit("r2")
    stays = bench.submit("r3", grant=GLOBEX)
    left.cancel("cancelled")
    bench.hub.end_streams(GRANT.key_id, ApiKeyRevoked())
    with pytest.raises(ApiKeyRevoked):
        await revoked.read()
    assert bench.limits.released == ["r1", "r2"] and bench.hub.held == {"base": 1}
    engine = await bench.join()
    assert (await engine.asked()).id == "r3"
    engine.say(Done("r3", Usage(), "stop"))
    await stays.read()
    assert engine.all_heard
    await bench.hub.drained()


async def test_other_base_models_wait_apart(bench: Bench) -> None:
    bench.submit("r1")
    bench.submit("r2", target=msgspec.structs.replace(BASE, base_model="other"))
    assert bench.hub.held == {"base": 1, "other": 1}
    other = await bench.join("o", model=msgspec.structs.replace(MODEL, name="other"))
    assert (await other.asked()).id == "r2"
    assert bench.hub.held == {"base": 1}
