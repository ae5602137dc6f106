"""`/v1/responses` through a whole gateway and a synthetic engine, as OpenAI's SDK reads it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, omit

from inference.agent.engines.synthetic.engine import SyntheticEngine
from tests.inference.operations.examples import SAID, responses
from tests.inference.operations.items import check_order
from tests.inference.rig import SLOW, Rig, rig, until
from tests.inference.samples import MODEL

PATH = "/v1/responses"
ANSWER = f"{MODEL.name}: {SAID}"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


@pytest.fixture
async def client(stack: Rig) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{stack.gateway.url}/v1", api_key="acme", max_retries=0
    ) as made:
        yield made


async def events_of(stack: Rig, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    async with stack.gateway.client() as one:
        text = (await one.post(PATH, json=body | {"stream": True}, headers=headers)).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_the_sdk_reads_an_answer_and_its_stream(stack: Rig, client: AsyncOpenAI) -> None:
    whole = await client.responses.create(model=MODEL.name, input=SAID, metadata={"a": "b"})
    assert (whole.output_text, whole.status) == (ANSWER, "completed")
    assert whole.id.startswith("resp_") and whole.metadata == {"a": "b"}
    async with client.responses.stream(model=MODEL.name, input=SAID) as stream:
        texts = [
            event.delta async for event in stream if event.type == "response.output_text.delta"
        ]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text == ANSWER
    assert final.usage == whole.usage
    await until(lambda: len(stack.gateway.ledger.entries) == 2)


async def test_a_cut_stream_is_incomplete(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model=MODEL.name, input=SAID, max_output_tokens=3, stream=True
    )
    *_, last = [event async for event in stream]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.usage is not None and last.response.usage.output_tokens == 3


async def test_a_limit_that_ends_a_stream_is_told(stack: Rig) -> None:
    body = responses(SAID, ignore_eos=True)
    del body["max_output_tokens"]
    stack.gateway.limits.tokens_left = 60
    events = await events_of(stack, body)
    check_order(events)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["finish_details"]["code"] == "rate_limit_exceeded"


async def test_a_stream_that_fails_ends_with_that(stack: Rig) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = replace(SLOW, fail_after_tokens=3)
    events = await events_of(stack, responses(), **{"Idempotency-Key": "order 17"})
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["type"]) == ("failed", "engine_failed")
    assert failed["error"]["code"] == "server_error"
    assert [item["status"] for item in failed["output"]] == ["incomplete"]
    assert stack.gateway.answers.rows == {}, "it is not kept as the answer to that key"


async def test_continuing_a_response_that_is_not_stored_is_refused(
    client: AsyncOpenAI,
) -> None:
    first = await client.responses.create(model=MODEL.name, input=SAID, store=True)
    assert first.to_dict()["store"] is False
    with pytest.raises(BadRequestError, match="response does not exist") as caught:
        await client.responses.create(
            model=MODEL.name, input=SAID, previous_response_id=first.id, instructions=omit
        )
    assert caught.value.param == "previous_response_id"


async def test_an_answer_goes_back_as_input(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL.name, input=SAID)
    items: Any = [{"role": "user", "content": SAID}, *first.to_dict()["output"]]  # type: ignore[misc]
    asked: Any = [*items, {"role": "user", "content": "And then?"}]
    second = await client.responses.create(model=MODEL.name, input=asked, instructions="Go on.")
    assert second.output_text == f"{MODEL.name}: And then?"
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
