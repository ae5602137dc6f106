"""Embeddings of an upstream engine are those that `vllm serve` gives to OpenAI's SDK
(`make upstreams`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from inference.agent.engines.engine import EngineWork
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.errors import InferenceError
from inference.operations.registry import OPERATIONS
from tests.engine.driving import run
from tests.labs.upstreams.servers import LLAMA_CPP, vllm_embeds

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not LLAMA_CPP.exists(), reason="needs `make upstreams`"),
]
TEXTS = ["A cat sleeps.", "The sum of two and three.", "x"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with vllm_embeds(tmp_path_factory.mktemp("server")) as url:
        yield url


async def test_vectors_are_those_of_the_server(url: str) -> None:
    sdk = OpenAI(base_url=url, api_key="none", max_retries=0)
    direct = sdk.embeddings.create(model="theirs", input=TEXTS)
    engine = await UpstreamEngine.start(EngineProfile.on_gpu("ours", runner="pooling"), url, "")
    operation = OPERATIONS.named("embeddings")
    answer = await run(engine, EngineWork("e", operation, {"input": TEXTS}, "ours", "salt"))
    assert engine.info.engine_version == "vLLM" and engine.info.operations == ["embeddings"]
    found = [one["embedding"] for one in answer.response["data"]]
    for ours, theirs in zip(found, direct.data, strict=True):
        assert ours == pytest.approx(theirs.embedding, abs=1e-6)
    assert answer.meter.prompt_tokens == direct.usage.prompt_tokens
    assert answer.response["usage"]["total_tokens"] == direct.usage.total_tokens
    with pytest.raises(InferenceError) as refused:
        long = {"input": ["word " * 5_000]}
        await run(engine, EngineWork("e2", operation, long, "ours", "salt"))
    assert refused.value.http_status == 400
    await engine.close()
