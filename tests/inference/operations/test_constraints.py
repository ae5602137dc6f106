"""Constraints on answers: malformed, oversized and meaningless ones are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.operations.bodies.constraints import (
    MAX_CONSTRAINT_BYTES,
    MAX_TOOLS_BYTES,
    HeldSchema,
    schemas_in,
)
from inference.operations.bodies.schemas import MAX_ITEMS
from inference.operations.chat import CHAT
from inference.operations.messages.messages import MESSAGES
from inference.operations.responses.responses import RESPONSES

pytestmark = pytest.mark.pure

HELLO = [{"role": "user", "content": "Hello"}]
PLAIN = {"type": "function", "function": {"name": "now"}}
LONG = "x" * MAX_CONSTRAINT_BYTES
FORMAT = "response_format.json_schema.schema"


def body_of(fields: dict[str, Any]) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO} | fields).encode()


def format_of(schema: Any) -> dict[str, Any]:
    json_schema = {"name": "answer", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [PLAIN, {"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": 5}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (format_of("string"), "response_format.json_schema.schema"),
        ({"response_format": {"type": LONG}}, "response_format"),
        ({"structured_outputs": {"grammar": LONG}}, "structured_outputs"),
        ({"tools": "now"}, "tools"),
        ({"tools": ["now"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (tool(description="no name"), "tools[1].function.name"),
        (tool(name=""), "tools[1].function.name"),
        (tool(name="f", parameters=[]), "tools[1].function.parameters"),
        (
            tool(name="f", parameters={"type": "string"}),
            "tools[1].function.parameters.type",
        ),
        (tool(name="f", description=LONG) | {"tool_choice": "required"}, "tools"),
        (
            tool(name="f", description=LONG)
            | {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tools",
        ),
        (tool(name="f", description="x" * MAX_TOOLS_BYTES), "tools"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        CHAT.parse(body_of(fields))
    assert refused.value.param == param
    assert f"`{param}`" in refused.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": None, "structured_outputs": None, "tools": None},
        {"response_format": {"type": "text"}},
        format_of(None),
        format_of({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        tool(name="f", description=LONG),
        tool(name="f", description=LONG) | {"tool_choice": "auto"},
    ],
)
def test_what_is_right_is_let_through(fields: dict[str, Any]) -> None:
    CHAT.parse(body_of(fields))


CIRCULAR: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"anyOf": [{"type": "string"}, {"$ref": "#"}]},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
    {"type": "object", "properties": {"a/b": {"$ref": "#/properties/a~1b"}}},
    {"type": "object", "properties": {"a b": {"$ref": "#/properties/a%20b"}}},
    {"type": "object", "properties": {"a": {"oneOf": [{"$ref": "#/properties/a/oneOf/0"}]}}},
    {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % 900}"} for i in range(900)}},
]


@pytest.mark.parametrize("schema", CIRCULAR, ids=range(len(CIRCULAR)))
def test_a_schema_that_only_refers_to_itself_is_refused(schema: dict[str, Any]) -> None:
    for fields, param in (
        (format_of(schema), FORMAT),
        ({"structured_outputs": {"json": schema}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": json.dumps(schema)}}, "structured_outputs.json"),
        (tool(name="f", parameters=schema), "tools[1].function.parameters"),
    ):
        with pytest.raises(InvalidRequest, match=r"\$ref") as refused:
            CHAT.parse(body_of(fields))
        assert refused.value.param == param


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"$defs": {"a": {"type": "string"}}, "anyOf": [{"$ref": "#/$defs/a"}] * 2},
    ],
)
def test_a_recursive_schema_is_accepted(schema: dict[str, Any]) -> None:
    CHAT.parse(body_of(format_of(schema)))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "#/anyOf/7", "anyOf": [{"type": "string"}]},
        {"$ref": "#/anyOf/" + "9" * 5000, "anyOf": [{"type": "string"}]},
        {"$ref": "https://example.com/schema#"},
        {"$ref": 5, "enum": [{"$ref": "#"}]},
        {"$defs": {"text": "is no schema"}, "$ref": "#/$defs/text/0"},
    ],
)
def test_only_a_tool_that_is_not_strict_may_refer_to_nothing(schema: dict[str, Any]) -> None:
    CHAT.parse(body_of(tool(name="f", parameters=schema)))
    with pytest.raises(InvalidRequest, match=r"/\$ref`") as refused:
        CHAT.parse(body_of(format_of(schema)))
    assert refused.value.param == FORMAT


UNIQUE = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
STRICT = {"name": "f", "strict": True}
RESPONSES_TOOL = {"type": "function", **STRICT, "parameters": UNIQUE}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": UNIQUE}}
OLDER_TAG = {"structures": [{"begin": "<", "schema": UNIQUE, "end": ">"}], "triggers": ["<"]}
MESSAGES_BODY = {"model": "m", "max_tokens": 5, "messages": HELLO}
RESPONSES_BODY = {"model": "m", "input": "Hello"}


@pytest.mark.parametrize(
    ("operation", "fields", "param"),
    [
        (CHAT, format_of(UNIQUE), FORMAT),
        (CHAT, {"response_format": TAG}, "response_format.format.json_schema"),
        (
            CHAT,
            {"response_format": {"type": "structural_tag"} | OLDER_TAG},
            "response_format.structures[0].schema",
        ),
        (CHAT, {"structured_outputs": {"json": UNIQUE}}, "structured_outputs.json"),
        (CHAT, {"structured_outputs": {"json": json.dumps(UNIQUE)}}, "structured_outputs.json"),
        (
            CHAT,
            {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
            "structured_outputs.structural_tag.format.json_schema",
        ),
        (CHAT, tool(**STRICT, parameters=UNIQUE), "tools[1].function.parameters"),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": UNIQUE}}},
            "text.format.schema",
        ),
        (RESPONSES, {"tools": [RESPONSES_TOOL]}, "tools[0].parameters"),
        (
            RESPONSES,
            {"tools": [{"type": "namespace", "name": "n", "tools": [RESPONSES_TOOL]}]},
            "tools[0].tools[0].parameters",
        ),
        (
            MESSAGES,
            {"output_config": {"format": {"type": "json_schema", "schema": UNIQUE}}},
            "output_config.format.schema",
        ),
        (MESSAGES, {"tools": [STRICT | {"input_schema": UNIQUE}]}, "tools[0].input_schema"),
    ],
)
def test_what_cannot_be_enforced_is_named(
    operation: Any, fields: dict[str, Any], param: str
) -> None:
    common = RESPONSES_BODY if operation is RESPONSES else MESSAGES_BODY
    with pytest.raises(InvalidRequest) as refused:
        operation.parse(json.dumps(common | fields).encode())
    assert refused.value.param == param
    said = "`/properties/tags/uniqueItems` is not supported: check the items of the answer."
    assert refused.value.message == f"`{param}`: {said}"


@pytest.mark.parametrize("strict", [None, False])
def test_a_tool_that_is_not_strict_may_have_any_keyword(strict: Any) -> None:
    CHAT.parse(body_of(tool(name="f", strict=strict, parameters=UNIQUE)))


def test_what_looks_like_a_schema_within_one_is_looked_at_as_a_part_of_it() -> None:
    schema: dict[str, Any] = {"$ref": "#/nowhere"}
    for _ in range(100):
        schema = {"parameters": schema, "json_schema": {"schema": {}}}
    tools = tool(name="f", parameters=schema)
    assert list(schemas_in(tools, "a")) == [
        HeldSchema("a.tools[1].function.parameters", schema, False)
    ]
    format_ = format_of(schema)["response_format"]
    assert list(schemas_in(format_, "response_format")) == [HeldSchema(FORMAT, schema, False)]


@pytest.mark.parametrize("json_", [5, ["$ref"], "[1", '["$ref"]'])
def test_what_is_no_schema_is_left_to_the_engine(json_: Any) -> None:
    CHAT.parse(body_of({"structured_outputs": {"json": json_, "pattern": "$ref"}}))


def test_a_choice_that_looks_like_the_path_of_an_error() -> None:
    with pytest.raises(InvalidRequest) as refused:
        CHAT.parse(body_of({"tool_choice": " - at `$.a`" * 9}))
    assert refused.value.param == "tool_choice"
    assert refused.value.message.startswith("`tool_choice`: invalid enum value ' - at `$.a` - at")


COUNTED: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "minItems": 10**9}, "add up to 1000000000"),
    ({"type": "array", "maxItems": MAX_ITEMS + 1}, "add up to 10001"),
    ({"anyOf": [{"minItems": 6000}, {"items": {"maxItems": 6000}}]}, "add up to 12000"),
    ({"type": "array", "minItems": -1}, "`minItems` is -1"),
    ({"type": "string", "minLength": -1}, "`minLength` is -1"),
    ({"type": "string", "maxLength": 1.5}, "`maxLength` is 1.5"),
    ({"type": "object", "maxProperties": "5"}, "`maxProperties` is '5'"),
    ({"type": "object", "minProperties": True}, "`minProperties` is True"),
]


@pytest.mark.parametrize(("schema", "says"), COUNTED)
def test_a_schema_that_an_engine_could_not_make_a_grammar_of(
    schema: dict[str, Any], says: str
) -> None:
    for fields, param in (
        (format_of(schema), FORMAT),
        ({"structured_outputs": {"json": json.dumps(schema)}}, "structured_outputs.json"),
        (
            tool(name="f", parameters={"type": "object", "properties": {"a": schema}}),
            "tools[1].function.parameters",
        ),
    ):
        with pytest.raises(InvalidRequest) as refused:
            CHAT.parse(body_of(fields))
        assert refused.value.param == param
        assert says in refused.value.message


def test_counts_are_accepted_up_to_the_engines_bound() -> None:
    CHAT.parse(body_of(format_of({"type": "array", "minItems": 5, "maxItems": MAX_ITEMS - 5})))
    CHAT.parse(body_of(format_of({"type": "string", "minLength": 0, "maxLength": 10**9})))
    CHAT.parse(body_of(format_of({"type": "object", "properties": {"minItems": {"type": "null"}}})))


def test_text_that_is_no_schema_is_left_to_the_engine() -> None:
    CHAT.parse(body_of({"structured_outputs": {"json": '{"$ref": "#"', "regex": '"$ref"'}}))


def test_a_constraint_that_nobody_can_read_is_none() -> None:
    body = b'{"model":"m","messages":[{}],"tools":[{"function":{"name":"\\ud800"}}]}'
    with pytest.raises(InvalidRequest, match="surrogate"):
        CHAT.parse(body)


@pytest.mark.parametrize(
    ("tools", "choice", "parsers"),
    [
        (None, None, ()),
        ([], "auto", ()),
        ([PLAIN], None, ("tool",)),
        ([PLAIN], "auto", ("tool",)),
        ([PLAIN], "required", ("tool",)),
        ([PLAIN], "none", ()),
    ],
)
def test_tools_that_may_be_called_need_a_parser(
    tools: Any, choice: str | None, parsers: tuple[str, ...]
) -> None:
    assert CHAT.parse(body_of({"tools": tools, "tool_choice": choice})).parsers == parsers


def allowing(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def functions(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name} | {"parameters": {}}} for name in names]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "f"}},
        allowing("auto", "f"),
        allowing("required", "f", "g"),
    ],
)
def test_a_choice_of_functions_needs_a_parser(choice: Any) -> None:
    call = CHAT.parse(body_of({"tools": functions("f", "g"), "tool_choice": choice}))
    assert call.parsers == ("tool",)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("sometimes", "tool_choice"),
        ({"type": "custom"}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        (allowing("auto"), "tool_choice.allowed_tools.tools"),
        (allowing("never", "f"), "tool_choice.allowed_tools.mode"),
        (allowing("auto", "f", "h"), "tool_choice"),
        ({"type": "function", "function": {"name": "h"}}, "tool_choice"),
    ],
)
def test_what_is_no_choice_is_named(choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        CHAT.parse(body_of({"tools": functions("f", "g"), "tool_choice": choice}))
    assert caught.value.param == param


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_an_engine_is_shown_the_allowed_tools_alone(mode: str) -> None:
    asked = {"tools": functions("f", "g", "h"), "tool_choice": allowing(mode, "h", "f")}
    before = json.dumps(asked)
    kept = CHAT.allowed({"messages": HELLO} | asked)
    assert [tool["function"]["name"] for tool in kept["tools"]] == ["f", "h"]
    assert kept["tool_choice"] == mode
    assert json.dumps(asked) == before


def test_another_choice_is_left_to_the_engine() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    asked = {"messages": HELLO, "tools": functions("f", "g"), "tool_choice": named}
    kept = CHAT.allowed(asked)
    assert (len(kept["tools"]), kept["tool_choice"]) == (2, named)


NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, NONE),
        ({"parameters": None}, NONE),
        ({"parameters": {}}, {"type": "object"}),
        (
            {"parameters": {"properties": {"a": {}}}},
            {"type": "object", "properties": {"a": {}}},
        ),
        ({"parameters": {"$ref": "#/$defs/a"}}, {"$ref": "#/$defs/a"}),
        ({"parameters": 7}, 7),
    ],
)
def test_a_function_takes_objects_alone(given: dict[str, Any], seen: Any) -> None:
    """Otherwise a required call could have `11.4` as its arguments."""
    asked = {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"} | given}]}
    before = json.dumps(asked)
    (kept,) = CHAT.allowed(asked)["tools"]
    assert kept == {"type": "function", "function": {"name": "f", "parameters": seen}}
    assert json.dumps(asked) == before, "it is left as it is"


def test_invalid_tools_are_left_to_the_engine() -> None:
    assert CHAT.allowed({"messages": HELLO, "tools": ["f"]})["tools"] == ["f"]
    assert CHAT.allowed({"messages": HELLO, "tools": "f"})["tools"] == "f"
