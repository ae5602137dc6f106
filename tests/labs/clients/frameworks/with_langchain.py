"""LangChain: a model, a stream, structured output, and the agent from its front page."""

import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

MODEL = os.environ["MODEL"]


class Person(BaseModel):
    """Information about a person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=99)


def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


def main() -> None:
    model = ChatOpenAI(model=MODEL)
    assert "Lima" in model.invoke("What is the capital of Peru?").text
    streamed = "".join(chunk.text for chunk in model.stream("What is the capital of Peru?"))
    assert "Lima" in streamed
    agent = create_agent(
        model=model, tools=[get_weather], system_prompt="You are a helpful assistant"
    )
    question = {"messages": [{"role": "user", "content": "what is the weather in sf"}]}
    messages = agent.invoke(question)["messages"]
    assert messages[-1].type == "ai" and messages[-1].text
    person = model.with_structured_output(Person, method="function_calling").invoke(
        "Jason is 25 years old."
    )
    assert isinstance(person, Person)


if __name__ == "__main__":
    main()
