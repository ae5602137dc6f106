"""LangGraph: the chatbot with a tool, as a graph, streamed and with memory."""

import os
from typing import Annotated, Literal, TypedDict

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition


class State(TypedDict):
    messages: Annotated[list, add_messages]


@tool
def get_weather(city: Literal["Lima", "Rome"]) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def main() -> None:
    tools = [get_weather]
    model = ChatOpenAI(model=os.environ["MODEL"])
    first, later = model.bind_tools(tools, tool_choice="any"), model.bind_tools(tools)

    def chatbot(state: State) -> dict:
        messages = state["messages"]
        return {"messages": [(later if len(messages) > 1 else first).invoke(messages)]}

    graph = StateGraph(State)
    graph.add_node("chatbot", chatbot)
    graph.add_node("tools", ToolNode(tools=tools))
    graph.add_conditional_edges("chatbot", tools_condition)
    graph.add_edge("tools", "chatbot")
    graph.add_edge(START, "chatbot")
    compiled = graph.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    question = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}]}
    for _ in compiled.stream(question, thread, stream_mode="values"):
        pass
    asked, call, result, answer = compiled.get_state(thread).values["messages"]
    assert [asked.type, call.type, result.type, answer.type] == ["human", "ai", "tool", "ai"]
    assert "sunny" in result.text and answer.text


if __name__ == "__main__":
    main()
