"""Adapters with which llama.cpp's own server was started, through a gateway and an upstream engine
(`make upstreams`)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import pytest_asyncio

from demo.smollm2 import base
from inference.agent.engines.engine import LocalAdapter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.content import FILES, digest_of
from inference.link.engine_info import AdapterRef
from tests.engine.adapter_servers import LlamaServer
from tests.engine.reference import TOKENS, reference
from tests.inference.rig import Rig, chat, rig
from tests.labs.upstreams.servers import LLAMA_SERVER, as_gguf, llama_server
from tests.labs.upstreams.test_adapters import sent

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not LLAMA_SERVER.exists(), reason="needs `make upstreams`"),
    pytest.mark.asyncio(loop_scope="module"),
]
SOURCES = Path(base.__file__).parent / "adapters"
SERVED = {"pirate": "acme", "support": "globex", "extract": "acme"}
"""Adapters and their tenants."""
QUESTION = "What is your refund policy?"
OTHER = "Count from one to nine. " * 6
"""So long that llama.cpp keeps the slot's last prompt in RAM instead of dropping it."""


@dataclass(frozen=True)
class Expected:
    """What transformers and PEFT answer."""

    model: Path

    def prompt(self, question: str) -> tuple[int, ...]:
        from transformers import AutoTokenizer

        told: Any = AutoTokenizer.from_pretrained(self.model).apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        return tuple(told)

    def check(self, said: str, name: str | None, question: str = QUESTION) -> None:
        """It is what they answer, who go on after an answer's end."""
        assert len(said) > 20
        assert self.expected(name, question).startswith(said), (name, question)

    def expected(self, name: str | None, question: str = QUESTION) -> str:
        adapter = None if name is None else SOURCES / name
        return reference(self.model, adapter, self.prompt(question))[0]


@dataclass(frozen=True)
class Converted(Expected):
    """The demo's model, and `SERVED` in files named by their digests."""

    gguf: Path
    adapters: Path


def local(name: str, number: int = 1) -> LocalAdapter:
    folder = SOURCES / name
    digest = digest_of(*(hashlib.sha256((folder / one).read_bytes()).hexdigest() for one in FILES))
    return LocalAdapter(AdapterRef(f"acme/{name}@{digest}", digest), number, folder)


@asynccontextmanager
async def rig_of(engine: UpstreamEngine, folder: Path) -> AsyncIterator[Rig]:
    """With one adapter more than the server has."""
    async with rig(folder, engine=engine, max_resident=1) as made:
        for number, (name, tenant) in enumerate((SERVED | {"agent": "acme"}).items(), 1):
            made.real_adapter(tenant, name, local(name, number))
        yield made


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    folder = tmp_path_factory.mktemp("converted")
    made = Converted(folder / "model", folder / "model.gguf", folder / "adapters")
    base.make(made.model)
    as_gguf(made.model, made.gguf)
    made.adapters.mkdir()
    for name in SERVED:
        as_gguf(made.model, made.adapters / f"{local(name).ref.digest}.gguf", SOURCES / name)
    return made


@pytest.fixture(scope="module")
def url(converted: Converted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One slot, and all caches as llama.cpp has them by default."""
    files = ",".join(str(converted.adapters / f"{local(name).ref.digest}.gguf") for name in SERVED)
    scratch = tmp_path_factory.mktemp("server")
    with llama_server(scratch, "--lora", files, model=converted.gguf) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url: str, converted: Converted) -> AsyncIterator[UpstreamEngine]:
    profile = EngineProfile.on_gpu(
        str(converted.model), served_name="ours", max_loras=1, max_cpu_loras=1
    )
    engine = await UpstreamEngine.start(
        profile, url, "", adapters=PurePosixPath(converted.adapters)
    )
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lorikeet(
    engine: UpstreamEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    async with rig_of(engine, tmp_path_factory.mktemp("rig")) as made:
        yield made


async def said(lorikeet: Rig, name: str | None, question: str = QUESTION) -> str:
    key = "acme" if name is None else SERVED[name]
    return await answer(f"{lorikeet.gateway.url}/v1", chat(name or "ours", question), key)


async def answer(url: str, body: dict[str, Any], key: str = "none") -> str:
    body |= {"temperature": 0, "max_tokens": TOKENS}
    found = await sent(f"{url}/chat/completions", body, key)
    assert found.is_success, found.text
    return str(found.json()["choices"][0]["message"]["content"])


async def test_answers_are_those_of_peft(lorikeet: Rig, converted: Converted) -> None:
    found = {name: await said(lorikeet, name) for name in (*SERVED, None)}
    for name, text in found.items():
        converted.check(text, name)
    assert len(set(found.values())) == len(found)


async def test_equal_prompts_by_turns_in_one_slot(lorikeet: Rig, converted: Converted) -> None:
    """What of one adapter waits in the cache in RAM is not another's, as it is without Lorikeet."""
    steps = [("pirate", QUESTION), ("support", OTHER), ("support", QUESTION), (None, QUESTION)]
    for name, question in steps:
        converted.check(await said(lorikeet, name, question), name, question)
    together = [*SERVED, None] * 2
    found = await asyncio.gather(*(said(lorikeet, name) for name in together))
    for name, text in zip(together, found, strict=True):
        converted.check(text, name)


async def test_the_server_itself_mixes_up_its_cache(url: str, converted: Converted) -> None:
    """If this fails, llama.cpp has mended it: then `cache_prompt` need not be off."""

    async def direct(place: int, question: str) -> str:
        lora = [{"id": place, "scale": 1.0}]
        return await answer(url, chat("theirs", question, lora=lora))

    converted.check(await direct(0, QUESTION), "pirate")
    converted.check(await direct(1, OTHER), "support", OTHER)
    assert not converted.expected("support").startswith(await direct(1, QUESTION))


async def test_other_adapters_are_refused(lorikeet: Rig) -> None:
    body = chat("agent", QUESTION)
    refused = await sent(f"{lorikeet.gateway.url}/v1/chat/completions", body, "acme")
    assert refused.status_code == 503
    assert f"started with the adapter {local('agent').ref.digest}" in refused.text


async def test_a_probe_sees_what_an_adapter_changes(engine: UpstreamEngine) -> None:
    report = await engine.probe(local("pirate"))
    assert report.finite and report.max_logprob_delta > 0.1
    assert report.base_text != report.adapter_text


async def test_the_fake_of_the_other_tests_lists_as_it_does(url: str, converted: Converted) -> None:
    import httpx

    async with httpx.AsyncClient(trust_env=False) as client:
        listed = (await client.get(f"{url.removesuffix('/v1')}/lora-adapters")).json()
        card = (await client.get(f"{url}/models")).json()["data"][0]
    names = [local(name).ref.digest for name in SERVED]
    fake = LlamaServer(loaded={name: converted.adapters / name for name in names}).listed()
    assert [one["path"] for one in listed] == [one["path"] for one in fake]
    assert [one.items() & other.items() for one, other in zip(listed, fake, strict=True)]
    assert (card["id"], card["owned_by"], card["meta"]["n_ctx"]) == ("theirs", "llamacpp", 2048)
