"""Tools, as agent frameworks use them with the OpenAI SDK, on the demo of `make up`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from demo import MODEL_NAME, TENANTS
from tests.stack.running import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.stack]

SUPPORT = TENANTS[0]
NOW: Any = {"type": "function", "function": {"name": "now", "description": "The time of day."}}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather somewhere.",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.facts["base_url"], api_key=stack.key(SUPPORT.slug)) as made:
        yield made


def said(client: OpenAI, model: str, *, stream: bool, **fields: Any) -> tuple[str, list[Any], str]:
    """An answer's text, the name and arguments of each call in it, and its finish reason."""
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "How is Lima?"}]}
    asked |= fields
    if not stream:
        (choice,) = client.chat.completions.create(**asked).choices
        message = choice.message
        calls = [[call.function.name, call.function.arguments] for call in message.tool_calls or ()]
        return message.content or "", calls, choice.finish_reason
    text, found, reason = "", dict[int, list[str]](), ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            name_and_arguments = found.setdefault(call.index, ["", ""])
            name_and_arguments[0] += call.function.name or ""
            name_and_arguments[1] += call.function.arguments or ""
        reason = choice.finish_reason or reason
    return text, [found[index] for index in sorted(found)], reason


@pytest.mark.parametrize(("model", "stream"), [(MODEL_NAME, False), (SUPPORT.adapter, True)])
def test_a_tool_that_is_required_is_called(client: OpenAI, model: str, *, stream: bool) -> None:
    """With arguments that match its schema. The demo model was not trained to end a string."""
    text, calls, reason = said(
        client, model, stream=stream, tools=[WEATHER], tool_choice="required", temperature=1.0,
        parallel_tool_calls=False, max_tokens=400,
    )  # fmt: skip
    assert reason == "tool_calls"
    assert not text.strip()
    ((name, arguments),) = calls
    assert name == "get_weather"
    assert json.loads(arguments)["unit"] in ("celsius", "fahrenheit")


def test_a_conversation_goes_on_after_a_call(client: OpenAI) -> None:
    asked: Any = {"model": MODEL_NAME, "tools": [WEATHER, NOW], "temperature": 0}
    messages: list[Any] = [{"role": "user", "content": "How is Lima?"}]
    first = client.chat.completions.create(
        **asked, messages=messages, tool_choice=NAMED, parallel_tool_calls=False
    )
    message = first.choices[0].message
    assert message.tool_calls
    messages.append(message)
    for call in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "Sunny."})
    second = client.chat.completions.create(**asked, messages=messages, max_tokens=60)
    assert second.choices[0].message.content or second.choices[0].message.tool_calls


def test_tools_count_whatever_the_choice(client: OpenAI) -> None:
    """`none` leaves them in the prompt, as at OpenAI."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    asked: Any = {"model": MODEL_NAME, "messages": messages, "max_tokens": 1}
    plain = client.chat.completions.create(**asked).usage
    tooled = client.chat.completions.create(**asked, tools=[NOW], tool_choice="none").usage
    assert plain is not None and tooled is not None
    assert tooled.prompt_tokens > plain.prompt_tokens
