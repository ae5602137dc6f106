"""The Responses API on vLLM, from its chunks to what a client reads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from inference.agent.engines.engine import Engine
from inference.errors import ContextLengthExceeded, RequestError
from inference.operations.responses.responses import RESPONSES
from tests.engine.driving import QUESTION, Answer, ask, goes_on, written
from tests.engine.vllm.test_vllm import SCHEMA
from tests.inference.operations.examples import responses
from tests.inference.operations.items import check_order

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
OTHER: dict[str, Any] = {"type": "function", "name": "now"}
CALLS: dict[str, Any] = {
    "tools": [OTHER, TOOL],
    "tool_choice": {"type": "function", "name": "get_weather"},
    "max_output_tokens": 60,
}
LOGPROBS = ["message.output_text.logprobs"]
STREAM = pytest.mark.parametrize("stream", [False, True])


async def asked(engine: Engine, input: Any = QUESTION, **given: Any) -> Answer:
    return await ask(engine, "responses", input=input, **{"max_output_tokens": 8} | given)


def response(answer: Answer, *, stream: bool) -> dict[str, Any]:
    """The response object that a client ends up with."""
    call = RESPONSES.parse(json.dumps(responses()).encode())
    bodies = written(replace(call, stream=stream), answer)
    if stream:
        check_order(bodies)
        bodies = [bodies[-1]["response"]]
    (found,) = bodies
    return dict(found)


@STREAM
async def test_it_is_a_chat_written_in_another_way(vllm: Engine, stream: bool) -> None:
    system = {"role": "system", "content": "Be brief."}
    chat = await ask(vllm, messages=[system, *QUESTION], stream=stream)
    parts = [{"type": "input_text", "text": QUESTION[0]["content"]}]
    for input in (QUESTION, QUESTION[0]["content"], [{"role": "user", "content": parts}]):
        answer = await asked(vllm, input, stream=stream, instructions="Be brief.")
        assert answer.text == chat.text
        assert answer.meter.prompt_tokens == chat.meter.prompt_tokens
    found = response(answer, stream=stream)
    assert found["output"][0]["content"][0]["text"] == chat.text
    assert found["status"] == "incomplete"


@STREAM
async def test_a_tool_is_called(vllm: Engine, stream: bool) -> None:
    found = response(await asked(vllm, stream=stream, ignore_eos=False, **CALLS), stream=stream)
    (call,) = [item for item in found["output"] if item["type"] == "function_call"]
    assert (call["name"], call["status"]) == ("get_weather", "completed")
    assert call["call_id"]
    assert json.loads(call["arguments"]) in ({"open": True}, {"open": False})


async def test_one_of_the_allowed_tools_is_called(vllm: Engine) -> None:
    allowed = {"type": "allowed_tools", "mode": "required"}
    choice = allowed | {"tools": [{"type": "function", "name": "get_weather"}]}
    given = CALLS | {"tool_choice": choice, "parallel_tool_calls": False}
    found = response(await asked(vllm, ignore_eos=False, **given), stream=False)
    assert [item["name"] for item in found["output"]] == ["get_weather"]


@STREAM
async def test_an_answer_is_held_to_a_schema(vllm: Engine, stream: bool) -> None:
    form = {"type": "json_schema", "name": "shop", "schema": SCHEMA, "strict": True}
    given: dict[str, Any] = {"text": {"format": form}, "max_output_tokens": 60}
    found = response(await asked(vllm, stream=stream, ignore_eos=False, **given), stream=stream)
    (item,) = found["output"]
    assert json.loads(item["content"][0]["text"]) in ({"open": True}, {"open": False})
    assert found["status"] == "completed"


@STREAM
async def test_logprobs_are_those_of_the_text(vllm: Engine, stream: bool) -> None:
    answer = await asked(vllm, stream=stream, include=LOGPROBS, top_logprobs=2)
    (item,) = response(answer, stream=stream)["output"]
    (part,) = item["content"]
    assert {len(one["top_logprobs"]) for one in part["logprobs"]} == {2}
    (choice,) = (await ask(vllm, logprobs=True, top_logprobs=2)).response["choices"]
    tokens = [one["token"] for one in choice["logprobs"]["content"]]
    assert [one["token"] for one in part["logprobs"]] == tokens
    assert len(tokens) == 8 and part["text"] == choice["message"]["content"]


async def test_what_happened_with_tools_goes_into_the_prompt(vllm: Engine) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    items = [*QUESTION, call, {"type": "function_call_output", "call_id": "c1", "output": "Sunny."}]
    short = await asked(vllm)
    long = await asked(vllm, items, tools=[TOOL])
    assert long.meter.prompt_tokens > short.meter.prompt_tokens


async def test_a_count_includes_everything_that_the_template_renders(vllm: Engine) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    items = [*QUESTION, call, {"type": "function_call_output", "call_id": "c1", "output": "Sunny."}]
    given: dict[str, Any] = {"instructions": "Be brief.", "tools": [OTHER, TOOL]}
    allowed = {"type": "allowed_tools", "tools": [{"type": "function", "name": "now"}]}
    for fields in ({}, {"tool_choice": allowed}, {"reasoning": {"effort": "low"}}):
        asked_for = given | fields
        counted = await ask(vllm, "input_tokens", input=items, **asked_for)
        used = (await asked(vllm, items, **asked_for)).meter.prompt_tokens
        assert counted.response["input_tokens"] == used


LINES = [{"role": "user", "content": f"{i} {'word ' * 20}"} for i in range(40)]
"""More messages than fit into the context."""
CALL = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "word " * 20}


@pytest.mark.parametrize("fields", [{}, {"include": LOGPROBS}], ids=["lean", "full"])
async def test_truncation_drops_the_beginning_of_a_long_input(
    vllm: Engine, fields: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"instructions": "Be brief.", "max_output_tokens": 20} | fields
    with pytest.raises(ContextLengthExceeded):
        await asked(vllm, LINES, **given)
    answer = await asked(vllm, LINES, truncation="auto", **given)
    limit, used = vllm.info.max_model_len, answer.meter.prompt_tokens
    of_one = (await asked(vllm, LINES[-1:], **given)).meter.prompt_tokens
    assert limit - 20 - of_one < used <= limit - 20
    assert answer.meter.completion_tokens == 20
    (kept,) = [i for i in range(40) if await tokens(vllm, LINES[i:], given) == used]
    assert 0 < kept < 39


async def tokens(vllm: Engine, items: list[Any], given: dict[str, Any]) -> int:
    """The number of tokens of a prompt; 0 if it is too long."""
    try:
        return (await asked(vllm, items, **given)).meter.prompt_tokens
    except ContextLengthExceeded:
        return 0


async def test_a_result_is_not_left_without_its_call(vllm: Engine) -> None:
    given: dict[str, Any] = {"truncation": "auto", "max_output_tokens": 4}
    long = {"role": "user", "content": "word " * 150}
    for count in range(1, 12):
        items = [long, CALL, *[RESULT] * count, *QUESTION]
        used = (await asked(vllm, items, **given)).meter.prompt_tokens
        allowed = [await tokens(vllm, items[i:], given) for i in (0, 1, 2 + count)]
        assert used in allowed


async def test_one_message_that_is_too_long_is_refused(vllm: Engine) -> None:
    with pytest.raises(ContextLengthExceeded):
        await asked(vllm, "word " * 5000, truncation="auto")


@STREAM
async def test_a_call_that_moves_is_one_item(vllm: Engine, stream: bool) -> None:
    """It is one item wherever it is cut, although each engine draws its own id for the call."""
    given = CALLS | {"stream": stream, "ignore_eos": False, "input": QUESTION}
    whole = await ask(vllm, "responses", wants_ids=True, **given)
    expected = response(whole, stream=stream)["output"]
    for cut in range(1, len(whole.outputs)):
        moved = await goes_on(vllm, whole, cut, "responses", **given)
        found = response(moved, stream=stream)["output"]
        assert [one | {"call_id": ""} for one in found] == [
            one | {"call_id": ""} for one in expected
        ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_k": "x"}, "top_k"),
        ({"stop": 7}, "stop"),
        ({"input": "word " * 5000}, None),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
    ],
)
async def test_what_vllm_finds_wrong_is_named(vllm: Engine, fields: Any, param: Any) -> None:
    with pytest.raises(RequestError) as caught:
        await asked(vllm, **fields)
    assert caught.value.param == param
