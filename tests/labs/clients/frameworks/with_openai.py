"""OpenAI's SDK: a chat, a stream, a loop of tool calls, and structured output."""

import json
import os

from openai import OpenAI
from pydantic import BaseModel, Field

MODEL = os.environ["MODEL"]
client = OpenAI()
QUESTION = {"role": "user", "content": "What is the capital of Peru?"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get current temperature for a given location.",
            "parameters": {
                "type": "object",
                "properties": {"location": {"type": "string", "enum": ["Paris", "Rome"]}},
                "required": ["location"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int


def chats() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[QUESTION])
    assert "Lima" in answer.choices[0].message.content


def streams() -> None:
    text = ""
    for chunk in client.chat.completions.create(model=MODEL, messages=[QUESTION], stream=True):
        text += chunk.choices[0].delta.content or ""
    assert "Lima" in text


def loops() -> None:
    messages = [{"role": "user", "content": "What is the weather like in Paris today?"}]
    first = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, tool_choice="required"
    )
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    messages.append(message)
    for call in message.tool_calls:
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["location"] in ("Paris", "Rome")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "22 degrees"})
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert second.choices[0].message.content


def parses() -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Extract: Jason is 25 years old."}],
        response_format=Person,
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def main() -> None:
    chats()
    streams()
    loops()
    parses()


if __name__ == "__main__":
    main()
