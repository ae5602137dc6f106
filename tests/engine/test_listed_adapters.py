"""Adapters that the server of an upstream engine lists as models: ms-swift's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.engine import EngineNotStarted
from inference.agent.engines.upstream.adapters import name_of
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.agent.engines.upstream.finishing import EVENTS_AHEAD, Finishing
from inference.agent.engines.upstream.model import FINISHES, NO_CACHE
from inference.agent.engines.upstream.started import LISTED
from inference.errors import AdapterLoadFailed, EngineFailed, InvalidRequest
from tests.engine.adapter_servers import AdapterServer, SwiftServer, listening
from tests.engine.driving import Answer, ask
from tests.engine.test_upstream_adapters import adapter_in, started


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SwiftServer]:
    adapters = [adapter_in(tmp_path, number) for number in (1, 2)]
    loaded = {name_of(one): one.path for one in adapters}
    async with listening(SwiftServer(loaded=loaded)) as server:
        yield server


@asynccontextmanager
async def swift(server: AdapterServer, folder: Path) -> AsyncIterator[UpstreamEngine]:
    async with started(server, folder, adapters=LISTED) as engine:
        yield engine


async def asked(engine: UpstreamEngine, **given: Any) -> Answer:
    return await ask(engine, ignore_eos=False, **given)


async def test_it_serves_what_is_listed_by_digest(server: SwiftServer, tmp_path: Path) -> None:
    names = ("lorikeet-12", f"lorikeet-{'f' * 64}x")
    server.loaded |= dict.fromkeys(names, adapter_in(tmp_path).path)
    async with swift(server, tmp_path) as engine:
        assert engine.info.only_adapters == [f"{1:064x}", f"{2:064x}"]
        assert engine.info.modules and NO_CACHE in engine.info.degraded
        assert f"ms-swift {FINISHES}" in engine.info.degraded
        one, two = (adapter_in(tmp_path, number, "secret") for number in (1, 2))
        await engine.load(one)
        said = [(await asked(engine, adapter=it)).said for it in (one, two, None, one, None)]
        assert said[:1] + said[2:3] == said[3:] and len(set(said)) == 3
        asked_for = [body["model"] for body in server.bodies[:3]]
        assert asked_for == [name_of(one), name_of(two), "theirs"]
        with pytest.raises(AdapterLoadFailed, match=rf"not started with {3:064x}, the"):
            await engine.load(adapter_in(tmp_path, 3))


async def test_answers_of_a_probe_may_end_early(server: SwiftServer, tmp_path: Path) -> None:
    async with swift(server, tmp_path) as engine:
        report = await engine.probe(adapter_in(tmp_path), [[1, 2, 3]])
        assert report.finite and report.max_logprob_delta == 1
        assert report.prompts == report.rows == []


async def test_a_restarted_server_without_the_adapter_ends_the_engine(
    server: SwiftServer, tmp_path: Path
) -> None:
    adapter = adapter_in(tmp_path)
    async with swift(server, tmp_path) as engine:
        del server.loaded[name_of(adapter)]
        with pytest.raises(EngineFailed, match="started anew, with other adapters"):
            await asked(engine, adapter=adapter)
        assert not engine.alive


async def test_no_refusal_names_the_adapters_of_others(server: SwiftServer, tmp_path: Path) -> None:
    async with swift(server, tmp_path) as engine:
        engine._model = "renamed"
        with pytest.raises(InvalidRequest) as refused:
            await asked(engine)
        assert "model_list" in refused.value.message and "00" not in refused.value.message


@pytest.mark.parametrize(("warmth", "sent"), [(1e-40, 0), (0.0, 0), (0.01, 0.01), (1.5, 1.5)])
async def test_a_temperature_that_would_hang_it_is_not_sent(
    server: SwiftServer, tmp_path: Path, warmth: float, sent: float
) -> None:
    async with swift(server, tmp_path) as engine:
        await asked(engine, temperature=warmth)
        assert server.bodies[0]["temperature"] == sent


async def test_the_option_has_to_fit_the_server(server: SwiftServer, tmp_path: Path) -> None:
    with pytest.raises(EngineNotStarted, match="for ms-swift it must be listed"):
        async with started(server, tmp_path):
            pass
    async with listening(AdapterServer()) as other:
        with pytest.raises(EngineNotStarted, match="for vLLM it must be a folder"):
            async with swift(other, tmp_path):
                pass
    server.loaded.clear()
    with pytest.raises(EngineNotStarted, match="with --adapters lorikeet-DIGEST=FOLDER"):
        async with swift(server, tmp_path):
            pass


class Source:
    """Events that come when `more` is set, and then without end until `stop`."""

    def __init__(self) -> None:
        self.more, self.stop, self.sent = asyncio.Event(), asyncio.Event(), 0
        self.many, self.ended = asyncio.Event(), asyncio.Event()

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await self.more.wait()
            while not self.stop.is_set():
                self.sent += 1
                if self.sent == 2 * EVENTS_AHEAD:
                    self.many.set()
                yield b"next"
                await asyncio.sleep(0)
        finally:
            self.ended.set()


async def test_what_was_left_keeps_its_place_until_it_is_finished() -> None:
    finishing, left, after = Finishing(1), Source(), Source()
    events = finishing.events(left.events())
    assert await anext(events) == b"first"
    await events.aclose()
    waiting = asyncio.create_task(anext(finishing.events(after.events())))
    left.more.set()
    await left.many.wait()  # it is read on, though nobody reads it here
    assert not waiting.done()
    left.stop.set()
    assert await waiting == b"first" and left.ended.is_set()
    await finishing.close()
    assert after.ended.is_set()


async def test_a_slow_reader_holds_the_source_up_until_it_leaves() -> None:
    finishing, source = Finishing(1), Source()
    source.more.set()
    events = finishing.events(source.events())
    await anext(events)
    for _ in range(10 * EVENTS_AHEAD):
        await asyncio.sleep(0)
    assert source.sent <= EVENTS_AHEAD + 1
    await events.aclose()
    source.stop.set()
    await source.ended.wait()
    await finishing.close()


async def test_what_the_source_raises_is_the_readers_while_there_is_one() -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise EngineFailed("The connection to the upstream broke.")

    finishing = Finishing(1)
    with pytest.raises(EngineFailed, match="broke"):
        async for event in finishing.events(broken()):
            assert event == b"first"
    events = finishing.events(broken())
    await anext(events)
    await events.aclose()
    assert await anext(finishing.events(broken())) == b"first", "its place is free again"
