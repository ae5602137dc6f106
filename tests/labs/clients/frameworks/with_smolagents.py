"""smolagents: its model answers a question, whole and streamed, and calls a tool."""

import json
import os
from typing import Literal

from smolagents import ChatMessage, MessageRole, OpenAIModel, tool


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Get the weather of a city.

    Args:
        city: The city.
    """
    return f"It is sunny in {city}."


def asked(question: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": question}])]


def main() -> None:
    model = OpenAIModel(
        model_id=os.environ["MODEL"],
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
    )
    question = asked("What is the capital of Peru?")
    assert "Lima" in model.generate(question).content
    assert "Lima" in "".join(part.content or "" for part in model.generate_stream(question))
    called = model.generate(asked("How is the weather in Paris?"), tools_to_call_from=[get_weather])
    function = called.tool_calls[0].function
    assert function.name == "get_weather"
    assert "sunny" in get_weather(**json.loads(function.arguments))


if __name__ == "__main__":
    main()
