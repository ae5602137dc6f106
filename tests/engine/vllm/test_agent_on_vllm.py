"""The agent on a real engine: busy slots, failing loads, and aborts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inference.agent.engines.engine import Engine
from tests.engine.conftest import MAX_LOADED, SLOTS
from tests.engine.factory import AdapterFactory
from tests.inference.rig import Rig, chat, rig, until

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture(loop_scope="session")
async def stack(vllm: Engine, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, engine=vllm, max_running=32, max_resident=MAX_LOADED) as made:
        yield made
        for resident in list(made.agent._residency._loaded.values()):
            await vllm.unload(resident.adapter)


def ask(model: str, **fields: Any) -> dict[str, Any]:
    return chat(model, **({"max_tokens": 30, "ignore_eos": True, "temperature": 0} | fields))


async def test_slots_that_are_all_busy_starve_nobody(stack: Rig, factory: AdapterFactory) -> None:
    """A flood keeps every slot busy until the newcomer is served, so a slot must be closed for it.

    The answers of one adapter have different lengths, so that they never all end at once.
    """
    for i in range(SLOTS):
        stack.real_adapter("acme", f"busy{i}", factory.make(seed=50 + i))
    stack.real_adapter("globex", "newcomer", factory.make("globex", seed=60))
    served = asyncio.Event()

    async def flood(model: str, tokens: int) -> None:
        async with stack.gateway.client("acme") as client:
            while not served.is_set():
                body = ask(model, max_tokens=tokens)
                assert (await client.post(CHAT, json=body)).is_success

    async with asyncio.TaskGroup() as tasks:
        for i in range(SLOTS):
            for tokens in (60, 97, 131):
                tasks.create_task(flood(f"busy{i}", tokens))
        await until(lambda: len(stack.agent._slots.in_use) == SLOTS)
        async with stack.gateway.client("globex") as client, asyncio.timeout(120):
            answer = await client.post(CHAT, json=ask("newcomer"))
        served.set()
    assert answer.is_success


async def test_a_client_that_leaves_frees_its_sequence_in_vllm(stack: Rig) -> None:
    """Checked by the engine core's own count of running requests."""
    body = ask("tiny", max_tokens=400, stream=True)
    async with stack.gateway.client() as client:
        async with client.stream("POST", CHAT, json=body) as response:
            async for line in response.aiter_lines():
                if "content" in line:
                    break
            await until(lambda: stack.engine.stats().running == 1)
        (record,) = await stack.gateway.ledger.settled()
        await client.post(CHAT, json=ask("tiny", max_tokens=1))  # one more step, to be counted in
        await until(lambda: not stack.engine.stats().running)
    assert record.finish_reason == "cancelled"
    assert 0 < record.usage.completion_tokens < 400


async def test_an_adapter_whose_files_are_broken_fails_alone(
    stack: Rig, factory: AdapterFactory
) -> None:
    stack.real_adapter("acme", "good", factory.make(seed=70))
    broken = factory.make(seed=71)
    weights = broken.path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    stack.real_adapter("acme", "broken", broken)
    async with stack.gateway.client() as client:
        names = ["good", "broken", "tiny", "good", "broken"]
        answers = await asyncio.gather(*(client.post(CHAT, json=ask(name)) for name in names))
        assert [answer.status_code for answer in answers] == [200, 503, 200, 200, 503]
        assert answers[1].json()["error"]["code"] == "adapter_load_failed"
        again = await client.post(CHAT, json=ask("good"))
    assert again.json()["choices"] == answers[0].json()["choices"]


async def test_choices_wait_in_our_queue_and_not_in_vllms(stack: Rig) -> None:
    """In vLLM's queue they would go before all later requests."""
    prompts = [f"Count from {i}" for i in range(5)]
    body = {"model": "tiny", "prompt": prompts, "n": 2, "max_tokens": 40, "ignore_eos": True}
    async with stack.gateway.client() as client, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(client.post("/v1/completions", json=body)) for _ in range(8)]
        while not all(task.done() for task in asked):
            stats = stack.engine.stats()
            assert stats.running + stats.waiting <= 32
            await asyncio.sleep(0)
    assert [len(task.result().json()["choices"]) for task in asked] == [10] * 8


async def test_more_choices_than_sequences_are_refused(stack: Rig) -> None:
    body = {"model": "tiny", "prompt": ["Hello"] * 33}
    async with stack.gateway.client() as client:
        refused = await client.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert "33 choices" in refused.json()["error"]["message"]


async def test_more_adapters_than_can_be_loaded_take_turns(
    stack: Rig, factory: AdapterFactory
) -> None:
    """With twice as many adapters as fit, each answers as it does alone."""
    count = MAX_LOADED * 2
    for i in range(count):
        stack.real_adapter("acme", f"a{i}", factory.make(seed=80 + i))
    async with stack.gateway.client() as client:
        alone = [(await client.post(CHAT, json=ask(f"a{i}", max_tokens=8))) for i in range(count)]
        mixed = await asyncio.gather(
            *(client.post(CHAT, json=ask(f"a{i % count}", max_tokens=8)) for i in range(count * 3))
        )
    texts = [json.dumps(answer.json()["choices"]) for answer in alone]
    assert len(set(texts)) > count // 2
    for i, answer in enumerate(mixed):
        assert json.dumps(answer.json()["choices"]) == texts[i % count]
    assert len(stack.agent.reports.stats().resident) == MAX_LOADED
