"""Requests that name a cascade: which option's answer the client gets, and what is billed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from inference.agent.engines.engine import EngineOutput, EngineWork
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.errors import EngineFailed
from inference.gateway.cascades import mean_logprob, without_logprobs
from inference.interfaces.directory import ResolvedTarget, TrafficRoute
from inference.link.accounts import LedgerEntry
from inference.operations.chat import Chat
from tests.inference.rig import Rig, chat, rig, until
from tests.inference.samples import MODEL

SURE, UNSURE, UNKNOWN = "I am sure", "I am unsure", "I am a call of a tool"
LOGPROBS = {SURE: -0.1, UNSURE: -2.0}
CHAT = "/v1/chat/completions"


class SureEngine(SyntheticEngine):
    """Gives log-probabilities, by the text of the question. Refuses what is in `refused`."""

    refused = ""

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        wanted = work.body.pop("logprobs", False)
        said = json.dumps(work.body)
        if self.refused and work.adapter and self.refused in work.adapter.ref.name:
            raise EngineFailed("It refuses.")
        async for output in super().generate(work):
            if not (wanted and output.finish_reason):
                yield output
                continue
            found = [one for text, one in LOGPROBS.items() if text in said]
            given = {"content": [token(one) for one in found], "refusal": None}
            choice = {"index": 0, "finish_reason": "stop", "logprobs": given if found else None}
            assert isinstance(work.operation, Chat)
            choice |= work.operation.choice("...")
            usage = {"prompt_tokens": work.meter.prompt_tokens, "completion_tokens": 3}
            usage["total_tokens"] = sum(usage.values())
            body = work.identity | {
                "object": "chat.completion", "choices": [choice], "usage": usage
            }  # fmt: skip
            yield EngineOutput(response=json.dumps(body).encode(), finish_reason="stop")


def token(logprob: float) -> dict[str, Any]:
    return {"token": "x", "logprob": logprob, "bytes": [120], "top_logprobs": []}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    """With a cascade of acme between two of its adapters."""
    async with rig(tmp_path, engine=SureEngine(MODEL)) as one:
        options = [
            ResolvedTarget(name, MODEL.name, one.adapter("acme", name, number), number)
            for number, name in enumerate(("small", "large"), 1)
        ]
        one.gateway.keys.routes["acme", "auto"] = TrafficRoute("auto", options, 1, sure_from=-1.0)
        yield one
        await one.engine.close()


async def ask(
    stack: Rig, text: str, path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    async with stack.gateway.client() as client:
        return await client.post(path, json=chat("auto", text, **fields), headers=headers)


async def billed(stack: Rig, count: int) -> list[LedgerEntry]:
    entries = await stack.gateway.ledger.settled(count)
    assert {one.account.route for one in entries} == {"auto"}
    return sorted(entries, key=lambda one: one.model, reverse=True)


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None}])
async def test_a_sure_answer_stays(stack: Rig, fields: dict[str, Any]) -> None:
    answer = await ask(stack, SURE, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "small"
    assert answer.json()["choices"][0]["logprobs"] is None, "nobody asked for them"
    (entry,) = await billed(stack, 1)
    assert entry.model == "small"


@pytest.mark.parametrize("text", [UNSURE, UNKNOWN])
async def test_an_unsure_answer_is_given_by_the_second_option_and_both_are_billed(
    stack: Rig, text: str
) -> None:
    answer = await ask(stack, text)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "large"
    assert answer.headers["x-request-id"].removeprefix("req_") in answer.json()["id"]
    first, second = await billed(stack, 2)
    assert [one.model for one in (first, second)] == ["small", "large"]
    used = sum(one.usage.prompt_tokens for one in (first, second))
    assert answer.json()["usage"]["prompt_tokens"] == used
    tallies = stack.gateway.hub.outcomes._tallies
    await until(lambda: sum(one.requests for one in tallies._of.values()) == 2)
    assert stack.gateway.hub.structures.room.total == 0


async def test_who_asks_for_log_probabilities_gets_those_of_the_answer(stack: Rig) -> None:
    answer = await ask(stack, SURE, logprobs=True)
    assert answer.json()["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.1
    answer = await ask(stack, UNSURE, logprobs=True)
    assert (answer.json()["model"], len(await billed(stack, 3))) == ("large", 3)


async def test_without_a_second_answer_the_first_one_stays(stack: Rig) -> None:
    SureEngine.refused = "large"
    try:
        answer = await ask(stack, UNSURE)
    finally:
        SureEngine.refused = ""
    assert answer.status_code == 200 and answer.json()["model"] == "small"
    assert answer.json()["choices"][0]["logprobs"] is None
    assert answer.headers["x-request-id"].removeprefix("req_") in answer.json()["id"]


@pytest.mark.parametrize(
    ("headers", "fields"),
    [({}, {"stream": True}), ({}, {"n": 2}), ({"Idempotency-Key": "once"}, {})],
    ids=["stream", "several choices", "idempotency key"],
)
async def test_what_can_not_be_a_cascade_gets_the_best_option(
    stack: Rig, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    answer = await ask(stack, UNSURE, headers=headers, **fields)
    assert answer.status_code == 200 and '"model":"large"' in answer.text, answer.text
    (entry,) = await billed(stack, 1)
    assert entry.model == "large"


async def test_an_option_that_the_key_may_not_use_ends_the_cascade(stack: Rig) -> None:
    route = stack.gateway.keys.routes["acme", "auto"]
    options = [None, route.options[1]]
    stack.gateway.keys.routes["acme", "auto"] = replace(route, options=options)
    assert (await ask(stack, UNSURE)).json()["model"] == "large"
    await billed(stack, 1)


async def test_another_operation_gets_the_best_option(stack: Rig) -> None:
    async with stack.gateway.client() as client:
        answer = await client.post("/v1/responses", json={"model": "auto", "input": UNSURE})
    assert answer.json()["model"] == "large"


@pytest.mark.pure
def test_how_sure_an_answer_is() -> None:
    def body(*logprobs: float) -> bytes:
        content = [token(one) for one in logprobs]
        choice = {"index": 0, "logprobs": {"content": content}}
        return json.dumps({"id": "x", "choices": [choice]}).encode()

    assert mean_logprob(body(-1.0, -2.0)) == -1.5
    assert mean_logprob(body()) is None
    assert mean_logprob(b'{"choices":[{"logprobs":null}]}') is None
    bare = {"id": "x", "choices": [{"index": 0, "logprobs": None}]}
    assert json.loads(without_logprobs(body(-1.0))) == bare
