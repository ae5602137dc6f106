"""pydantic-ai over chat completions: an answer, a stream, a tool, and typed output."""

import asyncio
import os

from pydantic import BaseModel, Field
from pydantic_ai import Agent

MODEL = f"openai-chat:{os.environ['MODEL']}"


class CityLocation(BaseModel):
    city: str = Field(max_length=20)
    country: str = Field(max_length=20)


def weather_forecast(location: str) -> str:
    """What the weather is like."""
    return f"It is sunny in {location}."


async def main() -> None:
    agent = Agent(MODEL, instructions="Be concise, reply with one sentence.")
    assert "Lima" in (await agent.run("What is the capital of Peru?")).output
    await stream(agent)
    forecaster = Agent(MODEL, tools=[weather_forecast])
    answer = await forecaster.run("What is the weather in Paris?")
    assert answer.output
    typed = await Agent(MODEL, output_type=CityLocation).run("Lima is a city in Peru.")
    assert isinstance(typed.output, CityLocation)


async def stream(agent: Agent) -> None:
    async with agent.run_stream("What is the capital of Peru?") as streamed:
        assert "Lima" in await streamed.get_output()


if __name__ == "__main__":
    asyncio.run(main())
