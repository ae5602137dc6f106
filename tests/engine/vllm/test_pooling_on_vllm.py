"""Embeddings and scores on a real vLLM: similarity, adapters, caches, errors. The base model is the
demo's."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from demo import EMBEDDING
from demo.pairs import examination
from inference.agent.engines.engine import Engine, LocalAdapter, Meter
from inference.agent.engines.profile import EngineProfile
from inference.errors import (
    AdapterLoadFailed,
    ContextLengthExceeded,
    EngineFailed,
    InvalidRequest,
)
from inference.operations.registry import OPERATIONS
from tests.engine.driving import Answer, run, work_of
from tests.engine.factory import AdapterFactory
from tests.inference.rig import until

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

TEXTS = ["How much is the kayak?", "The kayak costs 40 euros.", "My tent is broken."]
NUMBERS = 128
ONE_STEP = 64
"""Tokens of one engine step: so few that a list takes several steps."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def embedder() -> AsyncIterator[Engine]:
    from inference.agent.engines.vllm.engine import VLLMEngine

    profile = EngineProfile.on_cpu(
        str(EMBEDDING),
        runner="pooling",
        max_loras=2,
        max_cpu_loras=3,
        max_num_seqs=32,
        max_num_batched_tokens=ONE_STEP,
        kv_cache_memory_bytes=16 << 20,
    )
    engine = await VLLMEngine.start(profile)
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> AdapterFactory:
    return AdapterFactory(EMBEDDING, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def adapter(factory: AdapterFactory) -> LocalAdapter:
    return factory.make(seed=1)


async def ask(engine: Engine, kind: str, **given: Any) -> Answer:
    options = {name: given.pop(name) for name in ("adapter", "salt") if name in given}
    return await run(engine, replace(work_of(kind, **options), body=given))


async def vectors(engine: Engine, texts: Any, **given: Any) -> list[list[float]]:
    answer = await ask(engine, "embeddings", input=texts, **given)
    return [one["embedding"] for one in answer.response["data"]]


def likeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_it_says_what_it_does_and_does_nothing_else(embedder: Engine) -> None:
    done = [one.name for one in OPERATIONS if one.pools] + ["tokenize", "detokenize"]
    assert embedder.info.operations == done
    assert embedder.info.kv_tokens >= 2 * embedder.step_tokens
    with pytest.raises(InvalidRequest, match="model does not support"):
        await ask(embedder, "chat", messages=[{"role": "user", "content": "x"}])


async def test_texts_find_what_means_the_same_though_it_was_never_shown(embedder: Engine) -> None:
    questions, right = zip(*examination(), strict=True)
    asked, known = await vectors(embedder, [*questions]), await vectors(embedder, [*right])
    nearest = [max(range(len(known)), key=lambda i: likeness(one, known[i])) for one in asked]
    assert nearest == [*range(len(known))]


async def test_vectors_are_those_of_transformers(embedder: Engine) -> None:
    import torch
    import torch.nn.functional as F
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from demo import embed

    model = LlamaForCausalLM.from_pretrained(EMBEDDING, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(EMBEDDING)
    with torch.no_grad():
        expected = F.normalize(embed.vectors(model, tokenizer, TEXTS), dim=1).tolist()
    for found, wanted in zip(await vectors(embedder, TEXTS), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4) and len(found) == NUMBERS


async def test_tokens_are_a_text_and_a_vector_may_be_short_or_packed(embedder: Engine) -> None:
    (whole,) = await vectors(embedder, TEXTS[0])
    told = await ask(embedder, "tokenize", prompt=TEXTS[0])
    ids = told.response["tokens"]
    assert await vectors(embedder, ids) == [pytest.approx(whole, abs=1e-5)]
    both = await vectors(embedder, [ids, ids[:3]])
    assert both[0] == pytest.approx(whole, abs=1e-5) != both[1]
    (short,) = await vectors(embedder, TEXTS[0], dimensions=32)
    assert len(short) == 32 and likeness(short, short) == pytest.approx(1.0)
    (packed,) = await vectors(embedder, TEXTS[0], encoding_format="base64")
    unpacked = struct.unpack(f"<{NUMBERS}f", base64.b64decode(str(packed)))
    assert [*unpacked] == pytest.approx(whole, abs=1e-5)


async def test_prompts_are_billed_and_what_the_cache_holds_is_the_tenants_own(
    embedder: Engine,
) -> None:
    long = "How much is the kayak, and when will it arrive? " * 6
    before = embedder.stats()
    first = await ask(embedder, "embeddings", input=[long, "x"], salt="one")
    again = await ask(embedder, "embeddings", input=[long, "x"], salt="one")
    other = await ask(embedder, "embeddings", input=[long, "x"], salt="two")
    usage = first.response["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == first.meter.prompt_tokens > 64
    assert first.meter == Meter(first.meter.prompt_tokens) == other.meter
    assert again.meter.cached_tokens >= 32 and again.meter.prompt_tokens == usage["prompt_tokens"]
    total = embedder.stats().prompt_tokens - before.prompt_tokens
    assert total == 3 * usage["prompt_tokens"]
    assert embedder.stats().completion_tokens == before.completion_tokens


async def test_an_adapter_has_its_own_vectors_beside_the_base_models(
    embedder: Engine, adapter: LocalAdapter, factory: AdapterFactory
) -> None:
    import torch
    import torch.nn.functional as F
    from peft import PeftModel
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from demo import embed

    plain = await vectors(embedder, TEXTS)
    await embedder.load(adapter)
    try:
        mixed = await asyncio.gather(
            vectors(embedder, TEXTS, adapter=adapter, salt="a"),
            vectors(embedder, TEXTS, salt="b"),
        )
    finally:
        await embedder.unload(adapter)
    base = LlamaForCausalLM.from_pretrained(EMBEDDING, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(EMBEDDING)
    model = PeftModel.from_pretrained(base, adapter.path).base_model.model
    with torch.no_grad():
        expected = F.normalize(embed.vectors(model, tokenizer, TEXTS), dim=1).tolist()
    for at, wanted in enumerate(expected):
        assert mixed[0][at] == pytest.approx(wanted, abs=1e-3)
        assert mixed[1][at] == pytest.approx(plain[at], abs=1e-5)
        assert likeness(mixed[0][at], plain[at]) < 0.99
    with pytest.raises(AdapterLoadFailed):
        await vectors(embedder, TEXTS, adapter=adapter)


async def test_a_probe_tells_adapters_that_change_something(
    embedder: Engine, adapter: LocalAdapter, factory: AdapterFactory
) -> None:
    import torch

    inert = factory.changed(
        adapter, lambda name, tensor: torch.zeros_like(tensor) if "lora_B" in name else tensor
    )
    reports = []
    for one in (adapter, inert):
        reports.append(await embedder.probe(one))
        await embedder.unload(one)
    works, nothing = reports
    assert works.of_vector and works.finite and works.max_logprob_delta > 0.01
    assert nothing.finite and nothing.max_logprob_delta < 1e-4
    assert works.base_text != works.adapter_text


async def test_what_answers_best_comes_first(embedder: Engine) -> None:
    documents = [TEXTS[2], TEXTS[1], "We deliver the rope in three days."]
    ranked = (await ask(embedder, "rerank", query=TEXTS[0], documents=documents, top_n=2)).response
    assert ranked["results"][0]["index"] == 1 and len(ranked["results"]) == 2
    scored = await ask(embedder, "score", queries=TEXTS[0], documents=documents)
    scores = [one["score"] for one in scored.response["data"]]
    asked, *known = await vectors(embedder, [TEXTS[0], *documents])
    assert scores == pytest.approx([likeness(asked, one) for one in known], abs=1e-4)
    assert ranked["results"][0]["relevance_score"] == pytest.approx(scores[1], abs=1e-4)
    pairs = await ask(embedder, "score", text_1=documents, text_2=documents)
    assert [one["score"] for one in pairs.response["data"]] == pytest.approx([1.0] * 3, abs=1e-4)
    assert scored.meter.prompt_tokens == scored.response["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("kind", "body", "kinds", "param"),
    [
        ("embeddings", {"input": ["x", "long " * 600]}, ContextLengthExceeded, "input[1]"),
        ("embeddings", {"input": [[1], [1] * 600]}, ContextLengthExceeded, "input[1]"),
        ("embeddings", {"input": [[1], [1 << 20]]}, InvalidRequest, "input[1]"),
        ("embeddings", {"input": "x", "dimensions": 7}, InvalidRequest, "dimensions"),
        ("embeddings", {"input": "x", "truncate_prompt_tokens": 5000}, InvalidRequest, None),
        ("rerank", {"query": "x", "documents": ["x", "y " * 900]}, ContextLengthExceeded,
         "documents[1]"),
    ],
)  # fmt: skip
async def test_errors_name_what_is_wrong(
    embedder: Engine, kind: str, body: dict[str, Any], kinds: type[Exception], param: str | None
) -> None:
    before = embedder.stats().prompt_tokens
    with pytest.raises(kinds) as caught:
        await ask(embedder, kind, **body)
    assert param is None or caught.value.param == param  # type: ignore[attr-defined]
    assert embedder.stats().prompt_tokens == before, "nothing was computed"
    assert embedder.alive


async def test_a_text_that_is_too_long_may_be_cut(embedder: Engine) -> None:
    answer = await ask(embedder, "embeddings", input="long " * 600, truncate_prompt_tokens=-1)
    assert answer.meter.prompt_tokens == embedder.info.max_model_len


async def test_a_cancelled_list_stops_at_the_current_text(embedder: Engine) -> None:
    work = replace(work_of("embeddings"), body={"input": TEXTS * 300})
    async with aclosing(embedder.generate(work)) as outputs:
        async for output in outputs:
            assert output.response is None
            break
    stopped = work.meter.prompt_tokens
    assert 0 < stopped < 300 * 3 * 5
    await vectors(embedder, TEXTS)
    assert work.meter.prompt_tokens == stopped


async def test_later_requests_are_computed_beside_a_long_list(embedder: Engine) -> None:
    """Measured by how much of the list was computed until the newcomer had its answer."""
    long = replace(work_of("embeddings"), body={"input": TEXTS * 300})
    running = asyncio.create_task(run(embedder, long))
    await until(lambda: long.meter.prompt_tokens)
    before = long.meter.prompt_tokens
    await vectors(embedder, TEXTS)
    assert long.meter.prompt_tokens - before < 20 * ONE_STEP
    whole = await running
    assert len(whole.response["data"]) == 900


async def test_closing_the_engine_fails_its_requests(embedder: Engine) -> None:
    """The last test of this engine."""
    stream = embedder.generate(replace(work_of("embeddings"), body={"input": TEXTS * 300}))
    await anext(stream)
    await embedder.close()
    with pytest.raises(EngineFailed):
        async for _ in stream:
            pass
    assert not embedder.alive
    await embedder.close()
