"""Adapters with which ms-swift's `swift deploy` was started, through a gateway and an upstream
engine (`make upstreams`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from demo.smollm2 import base
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.upstream.adapters import name_of
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.agent.engines.upstream.started import LISTED
from tests.engine.adapter_servers import BASE, Refused, SwiftServer
from tests.inference.rig import Rig, chat
from tests.labs.upstreams.servers import MS_SWIFT, swift_deploy
from tests.labs.upstreams.test_adapters import sent
from tests.labs.upstreams.test_started_adapters import (
    QUESTION,
    SERVED,
    Expected,
    local,
    rig_of,
    said,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not MS_SWIFT.exists(), reason="needs `make upstreams`"),
    pytest.mark.asyncio(loop_scope="module"),
]
NAMES = {name_of(local(name)): local(name).path for name in SERVED}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    model = tmp_path_factory.mktemp("model") / "smollm2"
    base.make(model)
    return Expected(model)


@pytest.fixture(scope="module")
def url(expected: Expected, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with swift_deploy(tmp_path_factory.mktemp("server"), expected.model, NAMES) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url: str, expected: Expected) -> AsyncIterator[UpstreamEngine]:
    profile = EngineProfile.on_gpu(
        str(expected.model), served_name="ours", max_loras=1, max_cpu_loras=1, max_num_seqs=1,
        max_model_len=2048,
    )  # fmt: skip
    engine = await UpstreamEngine.start(profile, url, "", adapters=LISTED)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lorikeet(
    engine: UpstreamEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    async with rig_of(engine, tmp_path_factory.mktemp("rig")) as made:
        yield made


async def test_answers_are_those_of_peft(lorikeet: Rig, expected: Expected) -> None:
    names = [*SERVED, None] * 2
    found = await asyncio.gather(*(said(lorikeet, name) for name in names))
    for name, text in zip(names, found, strict=True):
        expected.check(text, name)
    assert len(set(found)) == len(SERVED) + 1


async def test_other_adapters_are_refused(lorikeet: Rig, url: str) -> None:
    body = chat("agent", QUESTION)
    refused = await sent(f"{lorikeet.gateway.url}/v1/chat/completions", body, "acme")
    assert refused.status_code == 503
    assert f"started with the adapter {local('agent').ref.digest}" in refused.text


async def test_nobody_reaches_an_adapter_by_its_name_on_the_server(lorikeet: Rig) -> None:
    for name in NAMES:
        body = chat(name, QUESTION)
        refused = await sent(f"{lorikeet.gateway.url}/v1/chat/completions", body, "globex")
        assert refused.status_code == 404


async def test_a_probe_sees_what_an_adapter_changes(engine: UpstreamEngine) -> None:
    report = await engine.probe(local("pirate"))
    assert report.finite and report.max_logprob_delta > 0.1
    assert report.base_text != report.adapter_text


async def test_the_fake_of_the_other_tests_lists_and_refuses_as_it_does(url: str) -> None:
    fake = SwiftServer(loaded=NAMES)
    async with httpx.AsyncClient(trust_env=False) as client:
        cards = (await client.get(f"{url}/models")).json()["data"]
    assert [{key: one[key] for key in one if key != "created"} for one in cards] == fake.listed()
    assert cards[0]["id"] == BASE
    body = chat("unknown", QUESTION)
    real = await sent(f"{url}/chat/completions", body)
    with pytest.raises(Refused) as refused:
        fake.answer("/v1/chat/completions", body)
    assert (real.status_code, json.loads(real.text)) == (refused.value.status, refused.value.body)
