"""Adapters of the demo on a real `vllm serve`, through a gateway and an upstream engine
(`make upstreams`)."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import pytest
import pytest_asyncio

from demo import ADAPTERS, BASE
from inference.agent.engines.engine import LocalAdapter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.upstream.adapters import UpstreamAdapters, name_of
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.content import FILES, digest_of
from inference.link.engine_info import AdapterRef
from tests.engine.adapter_servers import AdapterServer, Refused
from tests.inference.rig import Rig, chat, rig
from tests.labs.upstreams.servers import LLAMA_CPP, SLOTS, vllm_serve_adapters

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not LLAMA_CPP.exists(), reason="needs `make upstreams`"),
    pytest.mark.asyncio(loop_scope="module"),
]
QUESTION = "What is your refund policy?"
_int_ids = itertools.count(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's cache, which the server sees under the same path."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with vllm_serve_adapters(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lorikeet(
    url: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """A gateway and an agent, and a tenant for each adapter of the demo."""
    profile = EngineProfile.on_gpu(
        str(BASE), served_name="ours", max_loras=SLOTS, max_cpu_loras=SLOTS
    )
    engine = await UpstreamEngine.start(profile, url, "", adapters=PurePosixPath(folder))
    async with rig(tmp_path_factory.mktemp("rig"), engine=engine, max_resident=SLOTS) as made:
        for name in ADAPTERS:
            made.real_adapter("acme", name, fetched(name, folder))
        yield made
    await engine.close()


def fetched(name: str, folder: Path) -> LocalAdapter:
    """The adapter as the agent's store keeps it."""
    digest = digest_of(*(hashlib.sha256((ADAPTERS[name] / one).read_bytes()).hexdigest()
                         for one in FILES))  # fmt: skip
    if not (path := folder / digest).exists():
        path.mkdir()
        for one in FILES:
            shutil.copy(ADAPTERS[name] / one, path / one)
            (path / one).chmod(0o400)
    return LocalAdapter(AdapterRef(f"acme/{name}@{digest}", digest), next(_int_ids), path)


async def said(url: str, model: str, key: str = "none", **fields: Any) -> str:
    body = chat(model, QUESTION, temperature=0, max_tokens=24, **fields)
    answer = await sent(f"{url}/chat/completions", body, key)
    assert answer.is_success, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def sent(url: str, body: dict[str, Any], key: str = "none") -> httpx.Response:
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        return await client.post(url, json=body, headers={"Authorization": f"Bearer {key}"})


async def loaded(url: str) -> list[str]:
    """The adapters that the server lists."""
    async with httpx.AsyncClient(trust_env=False) as client:
        cards = (await client.get(f"{url}/models")).json()["data"]
    return [one["id"] for one in cards if one["parent"]]


async def test_adapters_answer_differently_as_the_server_itself_says(
    lorikeet: Rig, url: str, folder: Path
) -> None:
    """More adapters than slots, each asked twice: they are loaded in turns."""
    ours = f"{lorikeet.gateway.url}/v1"
    texts: dict[str, str] = {}
    for name in (*ADAPTERS, *ADAPTERS):
        text = await said(ours, name, key="acme")
        assert texts.setdefault(name, text) == text
        assert await said(url, name_of(fetched(name, folder))) == text
        assert len(await loaded(url)) <= SLOTS
    texts["ours"] = await said(ours, "ours", key="acme")
    assert len(set(texts.values())) == len(ADAPTERS) + 1


async def test_an_adapter_that_the_server_lost_is_loaded_again(
    lorikeet: Rig, url: str, folder: Path
) -> None:
    ours = f"{lorikeet.gateway.url}/v1"
    before = await said(ours, "pirate", key="acme")
    name = name_of(fetched("pirate", folder))
    assert (await sent(f"{url}/unload_lora_adapter", {"lora_name": name})).is_success
    assert name not in await loaded(url)
    assert await said(ours, "pirate", key="acme") == before


async def test_a_probe_sees_what_an_adapter_changes(lorikeet: Rig, folder: Path) -> None:
    assert isinstance(lorikeet.engine, UpstreamEngine)
    resident = lorikeet.engine._adapters
    assert isinstance(resident, UpstreamAdapters)
    resident._loaded.clear()  # room beside what the agent has loaded
    adapter = fetched("support", folder)
    report = await lorikeet.engine.probe(adapter, [[5, 6, 7, 8]])
    assert report.finite and report.max_logprob_delta > 0.1
    assert report.base_text != report.adapter_text
    assert len(report.prompts) == 3
    for one in (*report.prompts, *report.rows):
        assert len(one.ids) == len(one.base) + 1 == len(one.adapted) + 1
        assert max(*one.base, *one.adapted) <= 0


async def test_the_fake_of_the_other_tests_refuses_as_it_does(url: str, tmp_path: Path) -> None:
    fake, missing = AdapterServer(), str(tmp_path / "missing")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("load_lora_adapter", {"lora_name": "x", "lora_path": missing}),
        ("unload_lora_adapter", {"lora_name": "x"}),
        ("chat/completions", chat("x")),
        ("completions", {"model": "x", "prompt": "y", "max_tokens": 1}),
    ]
    for path, body in calls:
        real = await sent(f"{url}/{path}", body)
        with pytest.raises(Refused) as refused:
            fake.answer(f"/v1/{path}", body)
        assert real.status_code == refused.value.status
        said = real.json()["error"]["message"]
        assert said == refused.value.body["error"]["message"]
