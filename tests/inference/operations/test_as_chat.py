"""Anthropic's requests as chats of OpenAI's."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.operations.messages.as_chat import chat_of

pytestmark = pytest.mark.pure

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}


def chat(**fields: Any) -> dict[str, Any]:
    return chat_of({"messages": [USER]} | fields, 512)


def test_a_conversation_with_tools() -> None:
    turns = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Here."},
                {"type": "tool_result", "tool_use_id": "t1", "content": "42"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "3"}],
                },
                {"type": "tool_result", "tool_use_id": "t3"},
            ],
        },
        {"role": "assistant", "content": [{"type": "redacted_thinking"}]},
    ]
    call = {"name": "f", "arguments": '{"a":1}'}
    assert chat(messages=turns, system=[{"type": "text", "text": "S"}])["messages"] == [
        {"role": "system", "content": "S"},
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "42"},
        {"role": "tool", "tool_call_id": "t2", "content": "4\n3"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "Here."},
        {"role": "assistant", "content": None},
    ]


def test_a_turn_may_have_results_alone() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}
    made = chat(messages=[{"role": "user", "content": [result]}])
    assert made["messages"] == [{"role": "tool", "tool_call_id": "t1", "content": "42"}]


def test_the_same_fields_keep_their_names() -> None:
    fields = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "stream": True, "max_tokens": 7}
    made = chat(**fields, stop_sequences=["x"])
    assert made == {"messages": [USER], "stop": ["x"]} | fields
    assert chat(max_tokens=32_000)["max_tokens"] == 511


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (None, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_tools(choice: Any, chosen: dict[str, Any]) -> None:
    made = chat(tools=[TOOL], tool_choice=choice)
    assert made.pop("tools") == [{"type": "function", "function": FUNCTION}]
    assert made == {"messages": [USER]} | chosen


def test_forms_of_answers_and_thinking() -> None:
    schema = {"type": "object"}
    made = chat(
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}}
    )
    assert made["reasoning_effort"] == "high"
    assert made["response_format"]["json_schema"]["schema"] == schema
    assert chat(thinking={"type": "disabled"})["reasoning_effort"] == "none"
    assert "reasoning_effort" not in chat(thinking={"type": "enabled", "budget_tokens": 2_000})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("thinking", "x"),
        ("thinking", {"type": "a lot"}),
        ("output_config", {"effort": 5}),
        ("output_config", {"format": {"type": "json_schema"}}),
    ],
)
def test_wrong_shapes_are_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"`{field}`") as refused:
        chat(**{field: value})
    assert refused.value.param == field
