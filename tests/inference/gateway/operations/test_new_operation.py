"""What an operation's author tests; everything else is tested for every operation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.agent.engines.synthetic.engine import SyntheticEngine
from tests.inference.gateway.operations.every import WITH_ECHO
from tests.inference.rig import Rig, agent_on, chat, gateway
from tests.inference.samples import MODEL

PATH = "/v1/echo"


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


@pytest.mark.parametrize(
    ("body", "param"), [(echo(""), "text"), (echo(text=7), "text"), ({"text": "x"}, "model")]
)
async def test_its_own_refusals_have_the_one_shape(
    stack: Rig, body: dict[str, Any], param: str
) -> None:
    answer = await post(stack, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", param)


async def test_an_agent_without_it_refuses_it_alone(tmp_path: Path) -> None:
    async with gateway(operations=WITH_ECHO) as one:
        async with agent_on(SyntheticEngine(MODEL), tmp_path, [one]) as older:
            refused = await post(older, echo())
            assert refused.status_code == 400
            assert "`echo`" in refused.json()["error"]["message"]
            async with one.client() as client:
                assert (await client.post("/v1/chat/completions", json=chat())).is_success


async def test_an_unregistered_operation_is_not_found() -> None:
    async with gateway() as one, one.client() as client:
        assert (await client.post(PATH, json=echo())).status_code == 404
