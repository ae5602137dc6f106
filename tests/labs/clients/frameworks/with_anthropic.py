"""Anthropic's SDK: a message, a stream, a count of tokens, and a loop of tool calls."""

import os

from anthropic import Anthropic

MODEL = os.environ["MODEL"]
client = Anthropic()
QUESTION = {"role": "user", "content": "What is the capital of Peru?"}
ASKED = {"model": MODEL, "max_tokens": 200}
TOOLS = [
    {
        "name": "get_weather",
        "description": "Get the current weather in a given location",
        "input_schema": {
            "type": "object",
            "properties": {"location": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["location"],
        },
    }
]


def answers() -> None:
    message = client.messages.create(messages=[QUESTION], **ASKED)
    assert "Lima" in message.content[0].text
    assert message.stop_reason == "end_turn"
    with client.messages.stream(messages=[QUESTION], **ASKED) as stream:
        assert "Lima" in "".join(stream.text_stream)
    counted = client.messages.count_tokens(messages=[QUESTION], model=MODEL)
    assert counted.input_tokens == message.usage.input_tokens


def loops() -> None:
    messages = [{"role": "user", "content": "What is the weather like in Paris?"}]
    first = client.messages.create(
        messages=messages, tools=TOOLS, tool_choice={"type": "any"}, **ASKED
    )
    assert first.stop_reason == "tool_use"
    used = [block for block in first.content if block.type == "tool_use"]
    assert all(block.input["location"] in ("Paris", "Rome") for block in used)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "It is sunny."}
        for block in used
    ]
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    second = client.messages.create(messages=messages, tools=TOOLS, **ASKED)
    assert second.content[0].text


def main() -> None:
    answers()
    loops()


if __name__ == "__main__":
    main()
