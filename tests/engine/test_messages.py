"""Anthropic's API on vLLM, from its chunks to what a client reads; and the structure of chats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.agent.engines.engine import Engine
from inference.errors import ContextLengthExceeded, InvalidRequest
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.messages.messages import MESSAGES, MessagesCall
from inference.operations.operation import Operation
from tests.engine import driving
from tests.engine.driving import QUESTION, Answer, ask
from tests.engine.vllm.test_vllm import NAMED, SCHEMA, WEATHER

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

TOOL: dict[str, Any] = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}
CALLS: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": 60,
}
TOOLED: dict[str, Any] = {"tools": [WEATHER], "tool_choice": NAMED, "max_tokens": 60}


def written(operation: Operation, answer: Answer, *, stream: bool) -> list[Any]:
    """As `driving.written`, for a plain request."""
    return driving.written(MessagesCall(operation, "m", stream), answer)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "temperature": 1.0},
        {"logprobs": True, "top_logprobs": 2},
        TOOLED,
        {"tools": [WEATHER]},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"response_format": {"type": "json_object"}, "ignore_eos": False},
        {"stop": ["a", "e"]},
        {"add_generation_prompt": False, "logprobs": True},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
async def test_a_chat_has_one_shape_whatever_is_asked_for(
    vllm: Engine, fields: dict[str, Any], stream: bool
) -> None:
    answer = await ask(vllm, stream=stream, **fields)
    bodies = written(CHAT, answer, stream=stream)
    plain = written(CHAT, await ask(vllm, stream=stream), stream=stream)
    assert {frozenset(body) for body in bodies} == {frozenset(body) for body in plain}
    choices = [choice for body in bodies for choice in body["choices"]]
    kinds = {frozenset(choice) for body in plain for choice in body["choices"]}
    assert {frozenset(choice) for choice in choices} == kinds
    said = [choice["delta" if stream else "message"] for choice in choices]
    assert {one["role"] for one in said if "role" in one} == {"assistant"}
    for choice in [] if stream else choices:
        assert choice["message"].keys() - {"tool_calls"} == plain[0]["choices"][0]["message"].keys()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [{}, {"logprobs": 2}, {"echo": True, "logprobs": 1}, {"n": 2, "temperature": 1.0}],
    ids=lambda fields: "-".join(fields) or "plain",
)
async def test_a_completion_has_one_shape_whatever_is_asked_for(
    vllm: Engine, fields: dict[str, Any], stream: bool
) -> None:
    bodies = written(
        COMPLETION, await ask(vllm, "completion", stream=stream, **fields), stream=stream
    )
    plain = written(COMPLETION, await ask(vllm, "completion", stream=stream), stream=stream)
    assert {frozenset(body) for body in bodies} == {frozenset(body) for body in plain}
    for body in bodies:
        for choice in body["choices"]:
            assert choice.keys() == plain[0]["choices"][0].keys()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_called(vllm: Engine, stream: bool) -> None:
    answer = await ask(vllm, "messages", stream=stream, **CALLS)
    bodies = written(MESSAGES, answer, stream=stream)
    if stream:
        started = [one["content_block"] for one in bodies if one["type"] == "content_block_start"]
        (block,) = [one for one in started if one["type"] == "tool_use"]
        (ended,) = [one["delta"] for one in bodies if one["type"] == "message_delta"]
        parts = [one["delta"].get("partial_json", "") for one in bodies if "delta" in one]
        given = json.loads("".join(parts))
    else:
        (ended,) = bodies
        (block,) = ended["content"]
        given = block["input"]
    assert (block["type"], block["name"]) == ("tool_use", "get_weather")
    assert given in ({"open": True}, {"open": False})
    assert ended["stop_reason"] == "tool_use"


async def test_agents_ask_for_more_than_there_is_room_for(vllm: Engine) -> None:
    """Claude Code asks for 32,000 tokens whatever the model is."""
    answer = await ask(vllm, "messages", max_tokens=32_000)
    assert 8 < answer.tokens < vllm.info.max_model_len


async def test_a_prompt_that_is_too_long_is_told_in_numbers(vllm: Engine) -> None:
    for words in (600, 100_000):
        turns = [{"role": "user", "content": "zero one " * words}]
        with pytest.raises(ContextLengthExceeded) as caught:
            await ask(vllm, "messages", messages=turns, max_tokens=4)
        assert caught.value.limit == vllm.info.max_model_len < caught.value.tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sequence_that_ended_it_is_told(vllm: Engine, stream: bool) -> None:
    plain = (await ask(vllm, "messages", max_tokens=30)).text
    stop = plain[len(plain) // 2 : len(plain) // 2 + 2]
    answer = await ask(vllm, "messages", max_tokens=30, stop_sequences=[stop], stream=stream)
    *_, last = written(MESSAGES, answer, stream=stream)[: -1 if stream else None]
    ended = last["delta"] if stream else last
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", stop)


async def test_what_happened_with_tools_goes_into_the_prompt(vllm: Engine) -> None:
    call = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"open": True}}
    turns = [
        *QUESTION,
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "Sunny."}],
        },
    ]
    short = await ask(vllm, "messages")
    long = await ask(vllm, "messages", messages=turns, tools=[TOOL])
    assert long.meter.prompt_tokens > short.meter.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, "thinking"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"top_k": "x"}, "top_k"),
    ],
)
async def test_what_vllm_finds_wrong_is_named(vllm: Engine, fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(vllm, "messages", **fields)
    assert caught.value.param == param
