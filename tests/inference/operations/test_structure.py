"""Answers against the schemas and tools of their requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.operations.answered import choices_of
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.messages.messages import MESSAGES
from inference.operations.operation import Operation
from inference.operations.responses.responses import RESPONSES
from inference.operations.structure import (
    AskedStructure,
    FinishedAnswer,
    StructureOutcome,
    outcome_of,
)
from inference.operations.validation import UnusableSchema, checked_validator_of, follows

pytestmark = pytest.mark.pure

CONFORMED, MALFORMED, UNCHECKED = StructureOutcome
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
FUNCTION = {"name": "f", "parameters": SCHEMA}
MESSAGE = {"messages": [{"role": "user", "content": "Hello"}]}
CLIENT = MESSAGE | {"max_tokens": 9}
FLAT = {"type": "json_schema", "name": "x", "schema": SCHEMA}
ASKING: list[tuple[Operation, dict[str, Any]]] = [
    (CHAT, MESSAGE | {"response_format": FORMAT}),
    (CHAT, MESSAGE | {"structured_outputs": {"json": SCHEMA}}),
    (CHAT, MESSAGE | {"structured_outputs": {"json": json.dumps(SCHEMA)}}),
    (COMPLETION, {"prompt": "Hello", "structured_outputs": {"json": SCHEMA}}),
    (RESPONSES, {"input": "Hello", "text": {"format": FLAT}}),
    (MESSAGES, CLIENT | {"output_config": {"format": FLAT}}),
]
NESTED = {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]}
CALLING: list[tuple[Operation, dict[str, Any], str]] = [
    (CHAT, MESSAGE | {"tools": [{"type": "function", "function": FUNCTION}]}, "f"),
    (RESPONSES, {"input": "Hello", "tools": [{"type": "function", **FUNCTION}]}, "f"),
    (RESPONSES, {"input": "Hello", "tools": [NESTED]}, "n__f"),
    (MESSAGES, CLIENT | {"tools": [{"name": "f", "input_schema": SCHEMA}]}, "f"),
]
ASKED = AskedStructure(json.dumps(FORMAT).encode())


def asked(operation: Operation, body: dict[str, Any]) -> AskedStructure | None:
    return operation.parse(json.dumps({"model": "base"} | body).encode()).structure


def chunk(delta: dict[str, Any], index: int = 0, reason: str | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    return json.dumps({"choices": [choice]}).encode()


def calls(name: str, arguments: str) -> FinishedAnswer:
    called = [{"index": 0, "function": {"name": name, "arguments": arguments}}]
    message = {"content": None, "tool_calls": called}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return FinishedAnswer(parts=[json.dumps({"choices": [choice]}).encode()])


@pytest.mark.parametrize(("operation", "body"), ASKING)
def test_a_schema_of_each_api(operation: Operation, body: dict[str, Any]) -> None:
    found = asked(operation, body)
    assert found is not None and not found.only_tools
    for text, outcome in [('{"a": 1}', CONFORMED), ('{"a": "1"}', MALFORMED), ("a", MALFORMED)]:
        assert outcome_of(found, FinishedAnswer(text, finish_reason="stop")) == outcome


@pytest.mark.parametrize(("operation", "body", "name"), CALLING)
def test_tools_of_each_api(operation: Operation, body: dict[str, Any], name: str) -> None:
    found = asked(operation, body)
    assert found is not None and found.only_tools
    assert outcome_of(found, calls(name, '{"a": 1}')) == CONFORMED
    assert outcome_of(found, calls(name, '{"b": 1}')) == MALFORMED
    assert outcome_of(found, calls(name, "")) == MALFORMED
    assert outcome_of(found, calls("other", '{"a": 1}')) == MALFORMED
    assert outcome_of(found, FinishedAnswer("No tool is needed.")) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "tools": None, "structured_outputs": None},
        {"response_format": {"type": "text"}, "tools": []},
        {"structured_outputs": {"regex": "a+"}},
    ],
)
def test_nothing_is_asked_for(fields: dict[str, Any]) -> None:
    assert asked(CHAT, MESSAGE | fields) is None


def test_any_object_is_json() -> None:
    found = asked(CHAT, MESSAGE | {"response_format": {"type": "json_object"}})
    assert found is not None
    assert outcome_of(found, FinishedAnswer('{"b": [1]}')) == CONFORMED
    assert outcome_of(found, FinishedAnswer("[1]")) == MALFORMED


def test_a_function_without_a_schema_takes_any_object() -> None:
    found = asked(CHAT, MESSAGE | {"tools": [{"type": "function", "function": {"name": "f"}}]})
    assert found is not None
    assert outcome_of(found, calls("f", '{"a": 1}')) == CONFORMED
    assert outcome_of(found, calls("f", "1")) == MALFORMED


def test_the_choices_of_a_stream() -> None:
    parts = [
        chunk({"content": '{"a"'}),
        chunk({"content": '{"a": 2', "reasoning": "Hm"}, 1),
        chunk({"content": ": 1}"}),
        chunk({}, reason="stop"),
        chunk({"content": "}"}, 1, reason="stop"),
    ]
    assert [one.text for one in choices_of(parts)] == ['{"a": 1}', '{"a": 2}']
    assert outcome_of(ASKED, FinishedAnswer(parts=parts)) == CONFORMED
    wrong = [*parts[:-1], chunk({"content": "]"}, 1, reason="stop")]
    assert outcome_of(ASKED, FinishedAnswer(parts=wrong)) == MALFORMED
    cut = [*parts[:-1], chunk({"content": "}"}, 1, reason="length")]
    assert outcome_of(ASKED, FinishedAnswer(parts=cut)) == UNCHECKED


def test_arguments_that_come_in_pieces() -> None:
    found = asked(CHAT, CALLING[0][1])
    assert found is not None
    parts = [
        chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}", "name": None}}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"name": "f", "arguments": "{}"}}]}),
    ]
    assert outcome_of(found, FinishedAnswer(parts=parts[:2])) == CONFORMED
    assert outcome_of(found, FinishedAnswer(parts=parts)) == MALFORMED


def test_a_cut_answer_is_not_checked() -> None:
    assert outcome_of(ASKED, FinishedAnswer('{"a', finish_reason="length")) == UNCHECKED


DEEP: dict[str, Any] = {"properties": {"a": {"$ref": "#"}}, "type": "object"}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "nothing"}, "{}"),
        ({"$ref": "http://127.0.0.1/x"}, "{}"),
        ({"$ref": "#/$defs/missing"}, "{}"),
        ({"$ref": "#"}, "{}"),
        ({"pattern": "("}, '"a"'),
        (DEEP, '{"a":' * 3000 + "{}" + "}" * 3000),
        ({"multipleOf": 0.5}, "1" + "0" * 400),
    ],
)
def test_an_unusable_schema(schema: Any, text: str) -> None:
    outputs = json.dumps({"json": schema}).encode()
    assert outcome_of(AskedStructure(outputs=outputs), FinishedAnswer(text)) == UNCHECKED


@pytest.mark.parametrize("part", [b"no JSON", b"3", b'{"choices": [3]}'])
def test_an_unreadable_answer_is_not_checked(part: bytes) -> None:
    assert outcome_of(ASKED, FinishedAnswer(parts=[part])) == UNCHECKED


def test_a_schema_is_checked_once() -> None:
    with pytest.raises(UnusableSchema):
        checked_validator_of({"required": 1})
    assert follows("1", checked_validator_of(True))


def test_a_schema_that_engines_refuse_is_refused_before() -> None:
    schema = {"type": "object", "not": {"required": ["a"]}}
    with pytest.raises(InvalidRequest):
        asked(CHAT, MESSAGE | {"structured_outputs": {"json": schema}})
