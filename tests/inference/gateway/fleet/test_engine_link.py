"""The gateway's end of an engine link, where other tests do not reach it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from inference.link import wire
from inference.link.engine_info import Suspect
from inference.link.wire import Delta
from tests.inference.played import Bench, benched
from tests.inference.rig import until
from tests.inference.samples import REF

pytestmark = pytest.mark.pure


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched() as made:
        yield made


async def test_a_closed_link_drops_what_is_posted(bench: Bench) -> None:
    engine = await bench.join()
    link = bench.hub._links["engine-1"]
    engine.hang_up()
    await until(lambda: not bench.hub._links)
    link.post(wire.Unload("d" * 64))
    await asyncio.sleep(0)
    assert engine.all_heard


async def test_output_without_tokens_is_no_inter_token_time(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit("r1")
    await engine.asked()
    for delta in (Delta("r1", "a", 1), Delta("r1", "b"), Delta("r1", "c", 2)):
        engine.say(wire.Step([delta]))
        await stream.read()
    histogram = bench.hub._links["engine-1"].measured.inter_token_seconds
    assert histogram.buckets()[-1][1] == 2, "of the two tokens that came last"


async def test_a_load_that_nobody_waits_for_may_end(bench: Bench) -> None:
    engine = await bench.join()
    probe = asyncio.create_task(bench.hub.probe("base", REF))
    load = await engine.hear()
    assert isinstance(load, wire.Load)
    probe.cancel()
    await asyncio.wait([probe])
    engine.say(wire.Loaded(load.id, {}))
    await until(lambda: engine.all_read)
    assert bench.hub.engines(), "the link is still open"


async def test_suspects_are_passed_on_to_other_engines(bench: Bench) -> None:
    first, second = await bench.join("a"), await bench.join("b")
    suspect = Suspect("d", {"run": time.time()}, tenant="acme", request_id="r1")
    first.say(wire.SuspectList([suspect]))
    assert await second.hear() == wire.SuspectList([suspect])
    assert first.all_heard
