"""OpenAI's Agents SDK with its default, the Responses API: an agent, a stream, and a tool."""

import asyncio
import os
from typing import Literal

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from agents.items import ToolCallOutputItem

MODEL = os.environ["MODEL"]


@function_tool
def get_weather(city: Literal["Tokyo", "Rome"]) -> str:
    """Returns weather info for the specified city."""
    return f"The weather in {city} is sunny."


async def main() -> None:
    set_tracing_disabled(True)  # traces would be sent to OpenAI
    assistant = Agent(name="Assistant", instructions="You are a helpful assistant", model=MODEL)
    answer = await Runner.run(assistant, "What is the capital of Peru?")
    assert "Lima" in answer.final_output
    await stream(assistant)
    forecaster = Agent(
        name="Weather agent",
        tools=[get_weather],
        model=MODEL,
        model_settings=ModelSettings(tool_choice="required"),  # applies to the first step alone
    )
    answer = await Runner.run(forecaster, "What is the weather in Tokyo?")
    results = [item.output for item in answer.new_items if isinstance(item, ToolCallOutputItem)]
    assert results and "is sunny" in results[0]
    assert answer.final_output


async def stream(agent: Agent) -> None:
    result = Runner.run_streamed(agent, "What is the capital of Peru?")
    kinds = {event.type async for event in result.stream_events()}
    assert "raw_response_event" in kinds
    assert "Lima" in result.final_output


if __name__ == "__main__":
    asyncio.run(main())
