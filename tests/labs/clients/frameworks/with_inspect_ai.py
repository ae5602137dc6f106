"""inspect-ai: an evaluation of two questions, and one of an agent with a tool."""

import os
import sys
import tempfile
from typing import Literal

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import (
    CORRECT,
    INCORRECT,
    Score,
    Scorer,
    Target,
    accuracy,
    includes,
    scorer,
)
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import Tool, ToolFunction, tool

MODEL = f"openai/{os.environ['MODEL']}"


@tool
def weather() -> Tool:
    async def execute(city: Literal["Paris", "Rome"]) -> str:
        """
        The weather in a city.

        Args:
            city: The city.
        """
        return f"It is sunny in {city}."

    return execute


@scorer(metrics=[accuracy()])
def called() -> Scorer:
    """Whether the tool was called once, and the model answered after its result."""

    async def score(state: TaskState, target: Target) -> Score:
        results = [message.text for message in state.messages if message.role == "tool"]
        right = len(results) == 1 and "sunny" in results[0] and state.output.completion
        return Score(value=CORRECT if right else INCORRECT)

    return score


def main() -> None:
    capitals = Task(
        dataset=[
            Sample(input="What is the capital of Peru?", target="Lima"),
            Sample(input="What is the capital of Kenya?", target="Nairobi"),
        ],
        solver=generate(),
        scorer=includes(),
    )
    forecast = Task(
        dataset=[Sample(input="What is the weather in Rome?", target="sunny")],
        solver=[use_tools(weather(), tool_choice=ToolFunction("weather")), generate()],
        scorer=called(),
    )
    with tempfile.TemporaryDirectory() as logs:
        for log in eval([capitals, forecast], model=MODEL, log_dir=logs, display="none"):
            if log.status != "success" or log.results.scores[0].metrics["accuracy"].value < 1:
                sys.exit(f"{log.error} {log.samples}")


if __name__ == "__main__":
    main()
