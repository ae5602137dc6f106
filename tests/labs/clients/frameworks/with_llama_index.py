"""LlamaIndex: a completion, a chat, a stream, and a function-calling agent."""

import asyncio
import os
from typing import Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

QUESTION = "What is the capital of Peru?"


def weather(city: Literal["Lima", "Rome"]) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def main() -> None:
    model = OpenAILike(
        model=os.environ["MODEL"],
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=4096,
    )
    assert "Lima" in model.complete(QUESTION).text
    assert "Lima" in model.chat([ChatMessage(role="user", content=QUESTION)]).message.content
    assert "Lima" in "".join(part.delta for part in model.stream_complete(QUESTION))
    asyncio.run(ask_agent(model))


async def ask_agent(model: OpenAILike) -> None:
    agent = FunctionAgent(
        tools=[weather],
        llm=model,
        initial_tool_choice="weather",
        system_prompt="You are a helpful assistant that knows the weather.",
    )
    response = await agent.run("What is the weather in Rome?")
    assert [call.tool_name for call in response.tool_calls] == ["weather"]
    assert str(response)


if __name__ == "__main__":
    main()
