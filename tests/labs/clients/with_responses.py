"""OpenAI's SDK with the Responses API, unmodified: `python -m tests.labs.clients.with_responses URL
KEY MODEL`, where the URL ends with `/v1`, against a model that may call tools, such as that of
`make up`."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather somewhere.",
    "parameters": PARAMETERS,
    "strict": True,
}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
QUESTION = "What is the capital of Peru?"
CALLS: Any = {
    "tools": [WEATHER, NOW],
    "parallel_tool_calls": False,
    "max_output_tokens": 400,
    "temperature": 0,
}
ALLOWED: Any = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "name": "get_weather"}],
}


class Weather(BaseModel):
    unit: Literal["celsius", "fahrenheit"]


def check(url: str, key: str, model: str) -> None:
    """Raises AssertionError if something differs from OpenAI's API."""
    with OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        for test in (
            answers, streams, calls_a_tool, parses, goes_on_after_a_call, counts, scores, refuses,
        ):  # fmt: skip
            test(client, model)


def answers(client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "temperature": 0, "input": QUESTION}
    response = client.responses.create(
        **asked, instructions="Answer in a sentence.", metadata={"order": "17"}
    )
    assert (response.object, response.model, response.status) == ("response", model, "completed")
    assert response.output_text and response.metadata == {"order": "17"}
    assert response.instructions == "Answer in a sentence." and response.temperature == 0
    assert response._request_id and response._request_id.startswith("req_")
    cut = client.responses.create(**asked, max_output_tokens=1)
    assert cut.status == "incomplete" and cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.usage is not None and cut.usage.output_tokens == 1


def streams(client: OpenAI, model: str) -> None:
    asked: Any = {
        "model": model,
        "temperature": 0,
        "input": [{"role": "user", "content": QUESTION}],
    }
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = [*stream]
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage is not None and whole.usage is not None
    assert final.usage.total_tokens == whole.usage.total_tokens
    (cut,) = [
        event
        for event in client.responses.create(**asked, max_output_tokens=2, stream=True)
        if event.type in ("response.completed", "response.incomplete")
    ]
    assert cut.response.status == "incomplete"


def calls_a_tool(client: OpenAI, model: str) -> None:
    for choice in ({"type": "function", "name": "get_weather"}, ALLOWED):
        asked: Any = {"model": model, "input": QUESTION, "tool_choice": choice} | CALLS
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            streamed = stream.get_final_response()
        for response in (whole, streamed):
            items: list[Any] = [one for one in response.output if one.type == "function_call"]
            (call,) = items
            assert (call.name, call.status) == ("get_weather", "completed")
            assert Weather.model_validate_json(call.arguments)


def parses(client: OpenAI, model: str) -> None:
    response = client.responses.parse(
        model=model, input=QUESTION, text_format=Weather, max_output_tokens=60
    )
    assert isinstance(response.output_parsed, Weather)
    held: Any = {"format": {"type": "json_schema", "name": "weather", "schema": PARAMETERS}}
    plain = client.responses.create(model=model, input=QUESTION, text=held, max_output_tokens=60)
    assert json.loads(plain.output_text).keys() == {"unit"}


def goes_on_after_a_call(client: OpenAI, model: str) -> None:
    named: Any = {"type": "function", "name": "get_weather"}
    asked: Any = {"model": model} | CALLS
    items: Any = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(**asked, input=items, tool_choice=named)
    items += first.output
    for call in first.output:
        if call.type == "function_call":
            result = {"type": "function_call_output", "call_id": call.call_id}
            items.append(result | {"output": "20 degrees"})
    second = client.responses.create(**asked | {"max_output_tokens": 60}, input=items)
    assert second.output and second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


def counts(client: OpenAI, model: str) -> None:
    prompt: Any = {"model": model, "input": QUESTION, "instructions": "Be brief."}
    for asked in (prompt, prompt | {"tools": [WEATHER], "tool_choice": "auto"}):
        counted = client.responses.input_tokens.count(**asked)
        response = client.responses.create(**asked, max_output_tokens=1)
        assert counted.object == "response.input_tokens" and response.usage is not None
        assert counted.input_tokens == response.usage.input_tokens
    with pytest.raises(BadRequestError) as caught:
        client.responses.input_tokens.count(model=model, instructions="Be brief.")
    assert caught.value.param == "input"


def scores(client: OpenAI, model: str) -> None:
    response = client.responses.create(
        model=model,
        input=QUESTION,
        max_output_tokens=5,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    answer: Any = response.output[0]
    found = answer.content[0].logprobs
    assert len(found) == 5 and all(len(one.top_logprobs) == 2 for one in found)


def refuses(client: OpenAI, model: str) -> None:
    picture = {"type": "input_image", "image_url": "http://127.0.0.1/x.png", "detail": "auto"}
    items: Any = [{"role": "user", "content": [picture]}]
    for asked, param in (
        ({"input": items}, "input[0].content[0]"),
        ({"input": "Hi", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "Hi", "conversation": "conv_1"}, "conversation"),
    ):
        wrong: Any = {"model": model} | asked
        with pytest.raises(BadRequestError) as caught:
            client.responses.create(**wrong)
        assert caught.value.param == param
    with pytest.raises(NotFoundError):
        client.responses.create(model="nothing", input=QUESTION)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(f"resp_{'0' * 32}")


if __name__ == "__main__":
    check(*sys.argv[1:4])
    print("OpenAI's SDK has what it expects.")
