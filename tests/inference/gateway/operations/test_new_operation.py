"""A new operation has limits, fairness, adapters, idempotency and a bill without asking for any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.agent.engines.synthetic import Behaviour, SyntheticEngine
from inference.operations.registry import OPERATIONS, Registry
from tests.inference.operations.echo import Echo
from tests.inference.rig import STALLED, Rig, agent_on, chat, gateway, until
from tests.inference.samples import MODEL

PATH = "/v1/echo"
WITH_ECHO = Registry([*OPERATIONS, Echo()])


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    engine = SyntheticEngine(MODEL)
    async with gateway(operations=WITH_ECHO) as one:
        async with agent_on(engine, tmp_path, [one], operations=WITH_ECHO, max_running=1) as made:
            yield made
    await engine.close()


def echo(text: Any = "Polly", model: str = MODEL.name, **fields: Any) -> dict[str, Any]:
    return {"model": model, "text": text} | fields


async def post(
    stack: Rig, body: dict[str, Any], key: str = "acme", **headers: str
) -> httpx.Response:
    async with stack.gateway.client(key) as client:
        return await client.post(PATH, json=body, headers=headers)


async def test_it_answers_and_is_billed(stack: Rig) -> None:
    answer = await post(stack, echo())
    (entry,) = await stack.gateway.ledger.settled()
    assert answer.json() == {
        "id": f"echo-{entry.id}",
        "object": "echo",
        "model": MODEL.name,
        "text": f"{MODEL.name}: Polly",
        "usage": answer.json()["usage"],
    }
    counted = answer.json()["usage"]
    assert counted["completion_tokens"] == entry.usage.completion_tokens == 3
    assert counted["prompt_tokens"] == entry.usage.prompt_tokens == 2
    assert entry.finish_reason == "stop"
    assert stack.gateway.limits.settled == {entry.id: entry.usage}


async def test_it_streams(stack: Rig) -> None:
    answer = await post(stack, echo(stream=True))
    *texts, last = (
        json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line
    )
    assert "".join(texts) == f"{MODEL.name}: Polly"
    assert last["usage"]["completion_tokens"] == 3
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_its_adapters_are_the_tenants_own(stack: Rig) -> None:
    ref = stack.adapter("acme", "support")
    mine, theirs = [await post(stack, echo(model="support"), key) for key in ("acme", "globex")]
    assert mine.json()["text"] == f"{ref.name}: Polly"
    assert (theirs.status_code, theirs.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("body", "param"), [(echo(""), "text"), (echo(text=7), "text"), ({"text": "x"}, "model")]
)
async def test_its_own_refusals_have_the_one_shape(
    stack: Rig, body: dict[str, Any], param: str
) -> None:
    answer = await post(stack, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", param)


async def test_limits_hold(stack: Rig) -> None:
    stack.gateway.limits.tokens_left = 10
    refused = await post(stack, echo())
    allowed = await post(stack, echo(max_tokens=10))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert allowed.headers["x-ratelimit-remaining-tokens"] == "0"
    assert (await post(stack, echo(), "acme:usage:read")).status_code == 403


async def test_a_retry_gets_the_same_answer_and_pays_nothing(stack: Rig) -> None:
    key = {"Idempotency-Key": "order 17"}
    first, again = [await post(stack, echo(), **key) for _ in range(2)]
    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    assert (await post(stack, echo("Lori"), **key)).status_code == 409
    assert len(await stack.gateway.ledger.settled()) == 1


def _has_queued(stack: Rig, count: int) -> bool:
    return stack.agent.stats().queued == count


async def test_the_queue_is_fair_between_operations_too(stack: Rig) -> None:
    """A tenant that waits with one request goes before another's second one."""
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = STALLED
    ended: list[str] = []

    async def ask(name: str, key: str, path: str, body: dict[str, Any]) -> None:
        async with stack.gateway.client(key) as client:
            assert (await client.post(path, json=body)).is_success
        ended.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask("running", "acme", "/v1/chat/completions", chat(max_tokens=9)))
        await until(lambda: stack.engine.stats().running)
        for i in range(3):
            tasks.create_task(ask(f"acme {i}", "acme", PATH, echo(max_tokens=9)))
            await until(partial(_has_queued, stack, i + 1))
        tasks.create_task(ask("globex", "globex", PATH, echo(max_tokens=9)))
        await until(lambda: stack.agent.stats().queued == 4)
        stack.engine.behaviour = Behaviour()
    assert ended.index("globex") < ended.index("acme 1") < ended.index("acme 2")


async def test_an_agent_without_it_refuses_it_alone(tmp_path: Path) -> None:
    async with gateway(operations=WITH_ECHO) as one:
        async with agent_on(SyntheticEngine(MODEL), tmp_path, [one]) as older:
            refused = await post(older, echo())
            assert refused.status_code == 400
            assert "`echo`" in refused.json()["error"]["message"]
            async with one.client() as client:
                assert (await client.post("/v1/chat/completions", json=chat())).is_success


async def test_nobody_finds_what_is_not_registered() -> None:
    async with gateway() as one, one.client() as client:
        assert (await client.post(PATH, json=echo())).status_code == 404
