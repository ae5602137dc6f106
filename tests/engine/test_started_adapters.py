"""Adapters that the server of an upstream engine was started with: llama.cpp's."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.engine import EngineNotStarted
from inference.agent.engines.upstream.model import NO_ADAPTERS, NO_CACHE, SHARES
from inference.agent.engines.upstream.reading import scored_answer
from inference.content import CONFIG
from inference.errors import AdapterLoadFailed, EngineFailed
from tests.engine.adapter_servers import LlamaServer, listening
from tests.engine.driving import ask
from tests.engine.test_upstream_adapters import adapter_in, started


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LlamaServer]:
    adapters = [adapter_in(tmp_path, number) for number in (1, 2)]
    loaded = {one.ref.digest: one.path for one in adapters}
    async with listening(LlamaServer(loaded=loaded)) as server:
        yield server


async def test_it_serves_those_adapters_alone(server: LlamaServer, tmp_path: Path) -> None:
    others = {"f" * 63: tmp_path / "x", "operators-own": tmp_path / "x"}
    server.loaded |= {**others, "e" * 64: tmp_path / "elsewhere" / "x"}
    async with started(server, tmp_path) as engine:
        assert engine.info.only_adapters == [f"{1:064x}", f"{2:064x}"]
        assert engine.info.modules and NO_CACHE in engine.info.degraded
        assert "only the 2 adapters" in engine.info.degraded[-1]
        assert not any(one.endswith((NO_ADAPTERS, SHARES)) for one in engine.info.degraded)
        report = await engine.load(adapter := adapter_in(tmp_path))
        assert report.weight_bytes == len("weights 1")
        with pytest.raises(AdapterLoadFailed, match=rf"not started with {3:064x}, the"):
            await engine.load(adapter_in(tmp_path, 3))
        await engine.unload(adapter)
        assert (await ask(engine, adapter=adapter)).said


async def test_what_the_converter_passes_over_is_refused(
    server: LlamaServer, tmp_path: Path
) -> None:
    (adapter := adapter_in(tmp_path)).path.joinpath(CONFIG).write_text(
        '{"use_rslora": true, "alpha_pattern": {"q_proj": 4}}'
    )
    async with started(server, tmp_path) as engine:
        with pytest.raises(AdapterLoadFailed, match="has use_rslora and alpha_pattern, which"):
            await engine.load(adapter)


async def test_no_request_gets_what_is_of_another_adapter(
    server: LlamaServer, tmp_path: Path
) -> None:
    """Equal prompts by turns; the server mixes up what it has cached, and adds all of its adapters
    to a request that names none."""
    one, two = (adapter_in(tmp_path, number) for number in (1, 2))
    async with started(server, tmp_path) as engine:
        said = [(await ask(engine, adapter=it)).said for it in (one, two, None, one, two, None)]
        assert said[:3] == said[3:] and len(set(said)) == 3
        assert [body["lora"] for body in server.bodies[:3]] == [
            [{"id": 0, "scale": 1.0}],
            [{"id": 1, "scale": 1.0}],
            [{"id": 0, "scale": 0.0}],
        ]


async def test_a_server_that_was_started_with_others_gives_no_answer(
    server: LlamaServer, tmp_path: Path
) -> None:
    adapter = adapter_in(tmp_path)
    async with started(server, tmp_path) as engine:
        server.loaded = dict(reversed(server.loaded.items()))
        with pytest.raises(EngineFailed, match="started anew, with other adapters"):
            await ask(engine, adapter=adapter)
        assert not engine.alive
        with pytest.raises(EngineFailed):  # the adapter is not at fault
            await engine.probe(adapter)
        assert (await ask(engine)).said, "a request without an adapter names none"


async def test_a_probe_compares_answers(server: LlamaServer, tmp_path: Path) -> None:
    async with started(server, tmp_path) as engine:
        report = await engine.probe(adapter_in(tmp_path), [[1, 2, 3]])
        assert report.finite and report.max_logprob_delta == 1
        assert report.base_text != report.adapter_text
        assert report.prompts == report.rows == []


async def test_a_probe_sees_what_is_no_number(tmp_path: Path) -> None:
    class Broken(LlamaServer):
        def scored(self, body: dict[str, Any], prompt: int, value: float) -> str:
            return super().scored(body, prompt, value).replace("-2.0", "null")

    adapter = adapter_in(tmp_path)
    server = Broken(loaded={adapter.ref.digest: adapter.path})
    async with listening(server), started(server, tmp_path) as engine:
        report = await engine.probe(adapter)
        assert not report.finite and math.isnan(report.max_logprob_delta)


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ([], "lists no adapter that can be served: .* --lora .*/DIGEST.gguf"),
        ({"error": {"message": "not found"}}, "does not list its adapters"),
        ([{"id": "0", "path": "/x"}], "does not list its adapters"),
    ],
)
async def test_it_does_not_start_without_adapters(tmp_path: Path, listed: Any, why: str) -> None:
    class Other(LlamaServer):
        def listed(self) -> Any:
            return listed

    async with listening(Other()) as server:
        with pytest.raises(EngineNotStarted, match=why):
            async with started(server, tmp_path):
                pass


@pytest.mark.pure
@pytest.mark.parametrize("logprobs", ["null", '{"content": []}', '{"content": [{"token": "x"}]}'])
def test_an_answer_without_log_probabilities_fails(logprobs: str) -> None:
    with pytest.raises(EngineFailed, match="log-probabilities"):
        scored_answer(f'{{"choices": [{{"logprobs": {logprobs}}}]}}'.encode())


async def test_a_server_that_is_gone_gives_no_answer(server: LlamaServer, tmp_path: Path) -> None:
    adapter = adapter_in(tmp_path)
    async with started(server, tmp_path) as engine:
        assert engine._adapters is not None
        engine._adapters._address = "http://127.0.0.1:1"
        with pytest.raises(EngineFailed, match="does not answer"):
            await ask(engine, adapter=adapter)
