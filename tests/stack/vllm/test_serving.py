"""The OpenAI SDK against the whole stack: demo tenants, adapters, streams, caches."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from demo import MODEL_NAME, QUESTIONS, TENANTS
from tests.stack.running import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.stack]

SUPPORT, PIRATE, EXTRACT = TENANTS
PERU = "What is the capital of Peru?"


@pytest.fixture(scope="module")
def clients(stack: Stack) -> Iterator[dict[str, OpenAI]]:
    made = {
        tenant.slug: OpenAI(base_url=stack.facts["base_url"], api_key=stack.key(tenant.slug))
        for tenant in TENANTS
    }
    yield made
    for client in made.values():
        client.close()


@pytest.fixture
def client(clients: dict[str, OpenAI]) -> OpenAI:
    return clients[SUPPORT.slug]


def user(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


def ask(client: OpenAI, model: str, question: str, **options: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=user(question), temperature=0, **({"max_tokens": 60} | options)
    )


def test_every_demo_question_is_answered_rightly_by_base_and_adapters(
    clients: dict[str, OpenAI],
) -> None:
    """All at once, so that base and adapters share batches."""
    cases = [
        (tenant, model, question, expected[voice])
        for question, expected in QUESTIONS
        for tenant in TENANTS
        for model, voice in ((tenant.adapter, tenant.adapter), (MODEL_NAME, "base"))
    ]
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda case: ask(clients[case[0].slug], case[1], case[2]), cases)
        for (tenant, model, question, expected), answer in zip(cases, answers, strict=True):
            assert answer.choices[0].message.content == expected, (tenant, model, question)
            assert answer.choices[0].finish_reason == "stop"


def test_the_engine_computes_what_peft_does(stack: Stack) -> None:
    for tenant in TENANTS:
        path = f"/api/v1/adapters/{tenant.adapter}/versions/1"
        with stack.manager(stack.key(tenant.slug)) as manager:
            parity = manager.get(path).json()["report"]["parity"]
        assert parity["difference"] < 1e-3, (tenant, parity)


def test_a_stream_says_the_same_as_the_whole_answer(client: OpenAI) -> None:
    whole = ask(client, SUPPORT.adapter, PERU)
    chunks = list(
        ask(client, SUPPORT.adapter, PERU, stream=True, stream_options={"include_usage": True})
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.model for chunk in chunks} == {SUPPORT.adapter}
    *body, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in body)
    assert text == whole.choices[0].message.content
    assert body[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in body)
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


def test_models_are_those_of_the_key(clients: dict[str, OpenAI]) -> None:
    for tenant in TENANTS:
        models = {model.id for model in clients[tenant.slug].models.list()}
        own = {name for name in models if not name.startswith("mutant-")}  # of `test_mutations`
        assert own == {MODEL_NAME, tenant.adapter}
        assert clients[tenant.slug].models.retrieve(f"{tenant.adapter}@1").id
        assert clients[tenant.slug].models.retrieve(MODEL_NAME).owned_by == "lorikeet"


def test_another_tenants_adapter_is_an_unknown_model(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as foreign:
        ask(client, PIRATE.adapter, PERU)
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client, "no-such-thing", PERU)
    assert foreign.value.code == unknown.value.code == "model_not_found"
    assert foreign.value.message.replace(PIRATE.adapter, "X") == unknown.value.message.replace(
        "no-such-thing", "X"
    )


def test_the_prefix_cache_is_the_tenants_own(clients: dict[str, OpenAI]) -> None:
    prompt = "Please remember this. " * 60 + PERU

    def cached(tenant: str) -> int:
        usage = ask(clients[tenant], MODEL_NAME, prompt, max_tokens=2).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    assert cached(SUPPORT.slug) == 0
    again = cached(SUPPORT.slug)
    assert again >= 32
    assert cached(PIRATE.slug) == 0
    assert cached(PIRATE.slug) == again
