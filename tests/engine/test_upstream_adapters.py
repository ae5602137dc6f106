"""Adapters that an upstream engine loads on its server, beside the contract of all engines."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import pytest

from inference.agent.__main__ import parser, profile_of, start_engine
from inference.agent.engines.engine import EngineNotStarted, LocalAdapter
from inference.agent.engines.profile import BadProfile, EngineProfile
from inference.agent.engines.upstream.adapters import MAX_REASON
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.agent.engines.upstream.model import NO_ADAPTERS
from inference.agent.engines.upstream.reading import chat_text, scored_prompt
from inference.content import CONFIG, WEIGHTS
from inference.errors import AdapterLoadFailed, EngineFailed, InvalidRequest
from inference.link.engine_info import AdapterRef
from tests.engine.adapter_servers import BASE, AdapterServer, Refused, SGLangServer, listening
from tests.engine.driving import ask

SHAPE = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 8,
}  # fmt: skip


@pytest.fixture(params=[AdapterServer, SGLangServer], ids=["vllm", "sglang"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[AdapterServer]:
    async with listening(request.param()) as server:
        yield server


@asynccontextmanager
async def started(
    server: AdapterServer, folder: Path, slots: int = 2, **options: Any
) -> AsyncIterator[UpstreamEngine]:
    (model := folder / "model").mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(SHAPE))
    profile = EngineProfile.on_gpu(
        str(model), served_name="ours", max_loras=slots, max_cpu_loras=slots, max_lora_rank=8,
        max_model_len=512,
    )  # fmt: skip
    given = {"adapters": PurePosixPath(folder)} | options
    engine = await UpstreamEngine.start(profile, server.url, "key", **given)
    yield engine
    await engine.close()


def adapter_in(folder: Path, number: int = 1, tenant: str = "acme") -> LocalAdapter:
    digest = f"{number:064x}"
    (path := folder / digest).mkdir(exist_ok=True)
    (path / CONFIG).write_text("{}")
    (path / WEIGHTS).write_text(f"weights {number}")
    return LocalAdapter(AdapterRef(f"{tenant}/bot@{digest}", digest), number, path)


async def test_it_says_what_adapters_may_look_like(server: AdapterServer, tmp_path: Path) -> None:
    async with started(server, tmp_path) as engine:
        info = engine.info
        assert (info.max_loras, info.max_lora_rank) == (2, 8)
        assert info.modules["model.layers.0.self_attn.k_proj"] == (16, 32)
        assert not any("embed" in name or "lm_head" in name for name in info.modules)
        assert NO_ADAPTERS not in info.degraded


async def test_the_server_gets_names_and_folders_of_digests(
    server: AdapterServer, tmp_path: Path
) -> None:
    adapter = adapter_in(tmp_path, tenant="secret-customer")
    async with started(server, tmp_path) as engine:
        report = await engine.load(adapter)
        assert report.weight_bytes == len("weights 1")
        assert server.loaded == {f"lorikeet-{adapter.ref.digest}": adapter.path}
        adapted, plain = await ask(engine, adapter=adapter), await ask(engine)
        assert adapted.said != plain.said
        assert "secret" not in json.dumps(server.bodies)
        await engine.unload(adapter)
    assert server.loaded == {}


async def test_an_engine_is_started_with_the_options(server: AdapterServer, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    given = ["--engine", "upstream", "--model", str(tmp_path), "--upstream-url", server.url]
    given += ["--upstream-adapters", str(tmp_path), "--upstream-slots", "3"]
    options = parser().parse_args(given)
    engine = await start_engine(options, profile_of(options))
    assert engine.info.max_loras == 3
    for number in range(1, 4):
        await engine.load(adapter_in(tmp_path, number))
    with pytest.raises(AdapterLoadFailed, match="3 adapters are loaded"):
        await engine.load(adapter_in(tmp_path, 4))
    await engine.close()


async def test_tenants_and_adapters_have_salts_of_their_own(tmp_path: Path) -> None:
    one, two = adapter_in(tmp_path, 1), adapter_in(tmp_path, 2)
    async with listening(AdapterServer()) as server, started(server, tmp_path) as engine:
        for adapter in (one, two):
            await engine.load(adapter)
            for salt in ("red", "blue"):
                await ask(engine, adapter=adapter, salt=salt)
        assert len({body["cache_salt"] for body in server.bodies[1:]}) == 4


async def test_a_server_that_started_anew_gets_its_adapters_again(
    server: AdapterServer, tmp_path: Path
) -> None:
    adapter = adapter_in(tmp_path)
    async with started(server, tmp_path) as engine:
        await engine.load(adapter)
        before = await ask(engine, adapter=adapter)
        for _ in range(2):
            server.loaded.clear()
            assert (await ask(engine, adapter=adapter, stream=True)).tokens == before.tokens
            assert (await ask(engine, adapter=adapter)).said == before.said
        server.loaded.clear()
        assert (await engine.probe(adapter)).max_logprob_delta == 1
        assert len(server.loads) == 4
        server.loaded.clear()
        (adapter.path / WEIGHTS).rename(tmp_path / "away")
        with pytest.raises(AdapterLoadFailed, match=adapter.ref.name):
            await ask(engine, adapter=adapter)
        (tmp_path / "away").rename(adapter.path / WEIGHTS)
        assert (await ask(engine, adapter=adapter)).said == before.said
        server.loaded.clear()
        await engine.unload(adapter)
        await engine.load(adapter)


async def test_a_server_that_keeps_refusing_is_asked_twice(
    server: AdapterServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(server, tmp_path) as engine:
        await engine.load(adapter := adapter_in(tmp_path))
        server.loaded.clear()
        monkeypatch.setattr(server, "keep", lambda *_: None)
        with pytest.raises(AdapterLoadFailed, match="is not loaded") as refused:
            await ask(engine, adapter=adapter)
        assert len(server.bodies) == 3, "the first one is the engine's at its start"
        assert "lorikeet-" not in refused.value.message


async def test_another_refusal_is_no_reason_to_load(tmp_path: Path) -> None:
    class Strict(AdapterServer):
        def named(self, body: dict[str, Any]) -> str:
            raise self.error(400, "`temperature` is wrong.")

    async with listening(Strict()) as server, started(server, tmp_path) as engine:
        await engine.load(adapter := adapter_in(tmp_path))
        with pytest.raises(InvalidRequest, match="`temperature` is wrong"):
            await ask(engine, adapter=adapter)
        assert len(server.loads) == 1


async def test_what_an_earlier_process_left_is_unloaded(
    server: AdapterServer, tmp_path: Path
) -> None:
    left, others = f"lorikeet-{'a' * 64}", "operators-own"
    server.loaded = {left: tmp_path, others: tmp_path}
    async with started(server, tmp_path) as engine:
        assert set(server.loaded) == {others}
        server.loaded[f"lorikeet-{'0' * 63}1"] = tmp_path / f"{'0' * 63}1"
        await engine.load(adapter_in(tmp_path))  # an answer that was lost: it is there already


async def test_a_refused_load_says_why(server: AdapterServer, tmp_path: Path) -> None:
    adapter = adapter_in(tmp_path)
    (adapter.path / CONFIG).unlink()
    async with started(server, tmp_path) as engine:
        with pytest.raises(
            AdapterLoadFailed, match=rf"{adapter.ref.name} could not be loaded: \S+"
        ):
            await engine.load(adapter)
        server.enabled = False
        with pytest.raises(AdapterLoadFailed, match="Not Found") as refused:
            await engine.load(adapter)
        assert len(refused.value.message) < MAX_REASON + 200


async def test_a_server_that_is_gone_fails_the_load(server: AdapterServer, tmp_path: Path) -> None:
    async with started(server, tmp_path) as engine:
        assert engine._adapters is not None
        engine._adapters._address = "http://127.0.0.1:1"
        with pytest.raises(EngineFailed, match="does not answer"):
            await engine.load(adapter_in(tmp_path))


async def test_a_probe_compares_prompts_and_rows(server: AdapterServer, tmp_path: Path) -> None:
    adapter = adapter_in(tmp_path)
    async with started(server, tmp_path) as engine:
        report = await engine.probe(adapter, [[1, 2, 3]])
    assert report.finite and report.max_logprob_delta == 1 and report.base_text
    assert report.base_text != report.adapter_text
    says_ids = type(server) is AdapterServer
    assert len(report.prompts) == (3 if says_ids else 0)
    assert all(len(one.ids) == len(one.base) + 1 == len(one.adapted) + 1 for one in report.prompts)
    (row,) = report.rows
    assert (row.ids, row.base, row.adapted) == ([1, 2, 3], [-1.0] * 2, [-2.0] * 2)


async def test_a_probe_sees_what_is_no_number(tmp_path: Path) -> None:
    class Broken(AdapterServer):
        def scored(self, body: dict[str, Any], prompt: int, value: float) -> str:
            return super().scored(body, prompt, value).replace("-2.0", "null")

        def generated(self, body: dict[str, Any], name: str, *, chat: bool) -> str:
            if chat:
                raise self.error(400, "default chat template is no longer allowed")
            return super().generated(body, name, chat=chat)

    async with listening(Broken()) as server, started(server, tmp_path) as engine:
        report = await engine.probe(adapter_in(tmp_path))
        assert not report.finite and math.isnan(report.max_logprob_delta) and not report.prompts
        assert report.base_text == report.adapter_text == "", "it has no chats"


async def test_an_adapter_on_which_the_server_fails_is_at_fault(tmp_path: Path) -> None:
    """Not the server, whose probe would be tried again for ever."""

    class Failing(AdapterServer):
        def scored(self, body: dict[str, Any], prompt: int, value: float) -> str:
            if value == -2.0:
                raise self.error(500, "Out of range float values are not JSON compliant: nan")
            return super().scored(body, prompt, value)

    async with listening(Failing()) as server, started(server, tmp_path) as engine:
        adapter = adapter_in(tmp_path)
        with pytest.raises(AdapterLoadFailed, match=f"failed on a prompt.*{adapter.ref.name}"):
            await engine.probe(adapter)
        engine._client.base_url = "http://127.0.0.1:1/v1/"
        with pytest.raises(EngineFailed, match="can't be reached"):
            await engine.probe(adapter)


@pytest.mark.pure
@pytest.mark.parametrize(
    "body",
    [
        "x",
        "[" * 5_000,
        '{"choices": [], "usage": {"prompt_tokens": 1}}',
        '{"choices": [{"logprobs": null}], "usage": {"prompt_tokens": 1}}',
        '{"choices": [{"logprobs": {"token_logprobs": [null, -1]}}],'
        ' "usage": {"prompt_tokens": 9}}',
    ],
)
def test_a_completion_without_log_probabilities_fails(body: str) -> None:
    with pytest.raises(EngineFailed, match="log-probabilities"):
        scored_prompt(body.encode())
    assert chat_text(body.encode()) == ""


async def test_it_does_not_start_where_adapters_can_not_be_loaded(
    server: AdapterServer, tmp_path: Path
) -> None:
    server.enabled = False
    with pytest.raises(EngineNotStarted, match=r"unload_lora_adapter does not work.*--enable-lora"):
        async with started(server, tmp_path):
            pass
    with pytest.raises(
        EngineNotStarted, match=r"adapters of Ollama can't.*for vLLM, SGLang, llama.cpp and"
    ):
        async with started(server, tmp_path, dialect="ollama"):
            pass
    server.enabled = server.lenient = True
    with pytest.raises(EngineNotStarted, match="answers for adapters that it does not have"):
        async with started(server, tmp_path):
            pass
    server.lenient = False
    profile = EngineProfile.on_gpu(str(tmp_path))
    with pytest.raises(EngineNotStarted, match=f"--model {tmp_path} must be the folder"):
        await UpstreamEngine.start(profile, server.url, "", adapters=PurePosixPath(tmp_path))


async def test_the_fakes_refuse_what_servers_refuse(server: AdapterServer) -> None:
    """As the sources of vLLM 0.32 and SGLang say; a laboratory compares with `vllm serve`."""
    root = server.url.removesuffix("/v1") + server.below
    async with httpx.AsyncClient() as client:
        for verb in ("load", "unload"):
            body = {"lora_name": "x", "lora_path": "/nowhere"}
            refused = await client.post(f"{root}/{verb}_lora_adapter", json=body)
            assert refused.status_code == (404 if type(server) is AdapterServer else 400)
    with pytest.raises(Refused):
        server.named({"model": "x", "lora_path": "x"})
    assert server.named({"model": BASE}) == ""


@pytest.mark.pure
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            ["--upstream-adapters", "here"],
            "upstream_adapters is 'here': it must be a folder's whole path, or listed",
        ),
        (["--upstream-adapters", "/a"], "upstream_slots is 0: it must be at least 1 with"),
        (["--upstream-adapters", "/a", "--upstream-slots", "-1"], "upstream_slots is -1"),
        (["--upstream-slots", "3"], "upstream_slots is 3: it must be 0 without"),
    ],
)
def test_both_options_or_neither(given: list[str], why: str) -> None:
    always = ["--engine", "upstream", "--model", "org/m", "--upstream-url", "http://here:1/v1"]
    with pytest.raises(BadProfile, match=why):
        profile_of(parser().parse_args([*always, *given]))
    both = ["--upstream-adapters", "/a", "--upstream-slots", "3"]
    profile = profile_of(parser().parse_args([*always, *both]))
    assert profile.max_loras == profile.loaded_adapters == 3
