"""A stored request as a pane: all of it, and a notice that names what a pane cannot hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.playground.messages import PaneTurn, Start
from frontend.playground.reopened import Reopened, reopened
from tenants.content.turns import SpokenTurn, ToolUse

TOOL = {"type": "function", "function": {"name": "sky", "parameters": {"type": "object"}}}
CHOICE = {"type": "function", "function": {"name": "sky"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def schema_as(name: str) -> dict[str, Any]:
    inner = {"name": name, "schema": SCHEMA, "strict": True}
    return {"type": "json_schema", "json_schema": inner}


def opened(answer: SpokenTurn | None = None, **fields: Any) -> Reopened:
    found = reopened(json.dumps({"model": "base", "messages": MESSAGES} | fields), answer)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": 0.0}, {"top_p": 0.5}, {"max_tokens": 7}, {"stop": ["END", "."]},
        {"seed": 0}, {"presence_penalty": -1.5}, {"frequency_penalty": 0.5}, {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": CHOICE}, {"response_format": schema_as("answer")},
        {"response_format": schema_as("reply")}, {"response_format": {"type": "json_object"}},
        {"logit_bias": {"7": -100}}, {"parallel_tool_calls": False}, {"min_p": 0.1},
        {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "low"},
        {"logprobs": True, "top_logprobs": 5},
    ],
    ids=lambda field: "+".join(field),
)  # fmt: skip
def test_the_pane_asks_what_was_asked(field: dict[str, Any]) -> None:
    found = opened(**field)
    asked = json.loads(
        Start("a", found.pane.model, [PaneTurn("user", "Hello")], found.pane.parameters).body()
    )
    assert asked == {"model": "base", "messages": MESSAGES, "stream": True} | field
    assert found.notice == ""


def test_a_field_is_in_its_own_setting_where_there_is_one() -> None:
    parameters = opened(
        response_format=schema_as("answer"), max_completion_tokens=9
    ).pane.parameters
    assert (parameters.schema, parameters.extra, parameters.max_tokens) == (SCHEMA, {}, 9)
    parameters = opened(stop="END", stream_options={"include_usage": True}, n=1).pane.parameters
    assert (parameters.stop, parameters.extra) == (["END"], {})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 2}, "`n`"), ({"user": "ada", "metadata": {}}, "`user`, `metadata`"),
        ({"logprobs": True, "top_logprobs": 2}, "`top_logprobs` (here 5)"),
        ({"messages": [{"role": "user", "name": "Ada", "content": "x"}]}, "`name` of messages"),
        ({"messages": [{"role": "assistant", "content": "Hi"}, *MESSAGES[1:]]},
         "the answers before the first question"),
        ({"messages": [*MESSAGES, MESSAGES[0]]},
         "the roles and places of system messages (they are one system prompt)"),
        ({"messages": [{"role": "developer", "content": "x"}, *MESSAGES[1:]]},
         "the roles and places of system messages (they are one system prompt)"),
        ({"messages": [*MESSAGES, *MESSAGES[1:]]},
         "the ends of messages in a row by one speaker (they are one message)"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image_url"}, {"type": "image_url"}, {"type": "input_audio"}]}]},
         "2 pictures, 1 `input_audio` part"),
    ],
)  # fmt: skip
def test_what_a_pane_cannot_hold_is_named(fields: dict[str, Any], named: str) -> None:
    assert opened(**fields).notice == f"Not carried over from the request: {named}."


def test_the_notice_is_short_whatever_the_request_has() -> None:
    notice = opened(None, **{f"{n}{'x' * 500}": 1 for n in range(100)}).notice
    assert len(notice) < 1_000 and notice.endswith("88 more.")


def test_calls_of_tools_and_their_results_are_the_same_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "sky", "arguments": "{}"}}
    extra = {"index": 0}  # of a client that sends back what it was streamed
    messages = [
        MESSAGES[1],
        {"role": "assistant", "content": None, "tool_calls": [call | extra]},
        {"role": "tool", "tool_call_id": "c1", "content": "clear"},
        {"role": "tool", "tool_call_id": "c2", "content": "cold"},
    ]
    found = opened(SpokenTurn("assistant", "", (ToolUse("sea", "{}"),)), messages=messages)
    assert found.notice == ""
    asked, called, results, answer = found.pane.nodes
    assert (asked.content, called.calls[0].id, called.calls[0].function.name) == (
        "Hello", "c1", "sky",
    )  # fmt: skip
    assert results.results == {"c1": "clear", "c2": "cold"}
    assert (answer.role, answer.calls[0].function.name, found.pane.leaf) == ("assistant", "sea", 4)
