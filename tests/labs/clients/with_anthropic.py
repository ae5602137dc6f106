"""Anthropic's SDK, unmodified: `python -m tests.labs.clients.with_anthropic URL KEY MODEL`, against
a model that may call tools, such as that of `make up`."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError, NotFoundError

WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather somewhere.",
    "input_schema": {
        "type": "object",
        "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "required": ["unit"],
        "additionalProperties": False,
    },
}
GREEDY: Any = {"extra_body": {"temperature": 0}}
"""Greedy sampling, so that answers are repeatable."""
QUESTION: Any = [{"role": "user", "content": "What is the capital of Peru?"}]


def check(url: str, key: str, model: str) -> None:
    """Raises AssertionError if something differs from Anthropic's API."""
    with Anthropic(base_url=url, api_key=key, max_retries=0) as client:
        for test in (answers, streams, counts, calls_a_tool, goes_on_after_a_call, refuses):
            test(client, model)


def answers(client: Anthropic, model: str) -> None:
    asked: Any = {"model": model, "max_tokens": 60, "messages": QUESTION} | GREEDY
    message = client.messages.create(**asked, system="Answer in a sentence.")
    assert (message.type, message.role, message.model) == ("message", "assistant", model)
    assert message.stop_reason == "end_turn"
    (block,) = message.content
    assert block.type == "text" and block.text
    assert message._request_id and message._request_id.startswith("req_")
    cut = client.messages.create(**asked | {"max_tokens": 1})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 1)
    words = block.text.split()
    stopped = client.messages.create(
        **asked, system="Answer in a sentence.", stop_sequences=[words[1]]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", words[1])


def streams(client: Anthropic, model: str) -> None:
    asked: Any = {"model": model, "max_tokens": 60, "messages": QUESTION} | GREEDY
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    for usage in (final.usage, whole.usage):
        prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert prompt == counted(client, model)


def counted(client: Anthropic, model: str, **fields: Any) -> int:
    asked: Any = {"model": model, "messages": QUESTION} | fields
    return client.messages.count_tokens(**asked).input_tokens


def counts(client: Anthropic, model: str) -> None:
    assert counted(client, model, system="Be brief.") > counted(client, model) > 0
    assert counted(client, model, tools=[WEATHER]) > counted(client, model)


def calls_a_tool(client: Anthropic, model: str) -> None:
    asked: Any = {
        "model": model,
        "max_tokens": 400,
        "messages": QUESTION,
        "tools": [WEATHER],
        "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        **GREEDY,
    }
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole.to_dict(), streamed.to_dict()):
        content: Any = message["content"]
        assert message["stop_reason"] == "tool_use"
        (call,) = [block for block in content if block["type"] == "tool_use"]
        assert call["name"] == "get_weather"
        assert call["input"] in ({"unit": "celsius"}, {"unit": "fahrenheit"})


def goes_on_after_a_call(client: Anthropic, model: str) -> None:
    call = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"unit": "celsius"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "20 degrees"}
    turns: Any = [
        *QUESTION,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    message = client.messages.create(model=model, max_tokens=60, messages=turns, tools=[WEATHER])
    assert message.content


def refuses(client: Anthropic, model: str) -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
    turns: Any = [{"role": "user", "content": [picture]}]
    with pytest.raises(BadRequestError, match="not images") as caught:
        client.messages.create(model=model, max_tokens=9, messages=turns)
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(NotFoundError):
        client.messages.create(model="nothing", max_tokens=9, messages=QUESTION)


if __name__ == "__main__":
    check(*sys.argv[1:4])
    print("Anthropic's SDK has what it expects.")
