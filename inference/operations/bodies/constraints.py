"""The gateway's checks of what constrains an answer: response formats, grammars and tools.

The engine compiles each to a grammar, on the one loop that all its requests share. So constraints
must be small, have the shape of JSON schemas, and be ones that the grammar enforces completely
(`schemas`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from inference.errors import InvalidRequest
from inference.operations.bodies.keywords import UnsupportedSchema
from inference.operations.bodies.reading import decode_part
from inference.operations.bodies.references import ALTERNATIVES, is_circular, objects_in
from inference.operations.bodies.schemas import MAX_ITEMS, rewrite

MAX_CONSTRAINT_BYTES = 64 << 10
"""Most bytes of a schema or grammar as JSON. One of a megabyte blocked all streams for minutes."""
MAX_TOOLS_BYTES = 256 << 10
"""Most bytes of tools that an answer may, but need not, use: most of it is their descriptions."""

NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a function without parameters; OpenAI allows leaving it out."""

Schema = dict[str, msgspec.Raw]

_COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
_SUSPECT = re.compile(rb"\$ref|(?:min|max)(?:Items|Length|Properties)|strict")
"""What may be wrong in tools; most have none of it and need no further checks."""
_NESTED = "response_format.json_schema"
"""Has its schema under another name; a `json_schema` in a structural tag is one."""
MAX_KNOWN = 32
"""Checked constraints to remember, because clients repeat them; 8 MiB at most."""
_HOLDERS = {"schema", "json_schema", "json", "parameters", "input_schema"}
"""The fields of constraints and tools that hold schemas."""
_SAYS_TYPE = {"type", "$ref", "enum", "const", *ALTERNATIVES}
"""Keywords that restrict a value's type; a schema without them accepts any value."""


class _JsonSchema(msgspec.Struct):
    name: str
    schema: Schema | None = None
    description: str | None = None
    strict: bool | None = None


class _ResponseFormat(msgspec.Struct):
    type: str
    json_schema: _JsonSchema | None = None


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    function: _Function


class _Named(msgspec.Struct):
    name: str


class _AllowedTool(msgspec.Struct):
    type: Literal["function"]
    function: _Named


class _AllowedTools(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[_AllowedTool]


class _ToolChoice(msgspec.Struct):
    """A `tool_choice` object: one function by name, or a list of those that may be called."""

    type: Literal["function", "allowed_tools"] = "function"
    function: _Named | None = None
    allowed_tools: _AllowedTools | None = None


_tool_choice = msgspec.json.Decoder(Literal["none", "auto", "required"] | _ToolChoice | None)


class _ClientTool(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    type: str | None = None
    description: str | None = None
    input_schema: Schema | None = None


_client_tools = msgspec.json.Decoder(list[_ClientTool] | None)


class ToolField(msgspec.Struct):
    """A tool in the notation of the Responses API: a function, or a namespace of `tools`."""

    name: Annotated[str, msgspec.Meta(min_length=1)] = ""
    type: str = ""
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None
    tools: list[ToolField] = []
    external_web_access: bool | None = None


_function_tools = msgspec.json.Decoder(list[ToolField] | None)
_response_format = msgspec.json.Decoder(_ResponseFormat | None)
_tools = msgspec.json.Decoder(list[_Tool] | None)


def check_response_format(raw: msgspec.Raw) -> None:
    """Check the shape of a response format, and its schema as `check_schema` does.

    Raises:
        InvalidRequest: it is wrong or too large.
    """
    _check_size(raw, "response_format", MAX_CONSTRAINT_BYTES)
    found: _ResponseFormat | None = decode_part(_response_format, raw, "response_format")
    if found is not None and found.type == "json_schema" and found.json_schema is None:
        param = "response_format.json_schema"
        raise InvalidRequest(f"`{param}` is missing.", param=param)
    _check_schemas(bytes(raw), "response_format")


def check_schema(raw: msgspec.Raw, param: str) -> None:
    """Check a field that holds a schema: its size, counts and references.

    Raises:
        InvalidRequest: the field is too large, or `_check_schemas` finds something.
    """
    _check_size(raw, param, MAX_CONSTRAINT_BYTES)
    _check_schemas(bytes(raw), param)


def check_structured_outputs(raw: msgspec.Raw) -> None:
    """As `check_schema`; everything else about it is checked by the engine.

    Raises:
        InvalidRequest: as `check_schema`.
    """
    check_schema(raw, "structured_outputs")


class ToolChoice(NamedTuple):
    """What `tool_choice` asks for: whether there may be calls, whether there must be one, and which
    functions may be called, empty for all."""

    may_use: bool
    must_use: bool
    names: tuple[str, ...] = ()


def read_tool_choice(raw: msgspec.Raw) -> ToolChoice:
    """Read `tool_choice`, which may be missing.

    Raises:
        InvalidRequest: it is wrong.
    """
    choice = decode_part(_tool_choice, raw, "tool_choice")
    if not isinstance(choice, _ToolChoice):
        return ToolChoice(choice != "none", choice == "required")
    missing = f"tool_choice.{choice.type}"
    if choice.type == "allowed_tools":
        if choice.allowed_tools is not None:
            names = tuple(tool.function.name for tool in choice.allowed_tools.tools)
            if not names:
                param = f"{missing}.tools"
                raise InvalidRequest(f"`{param}` must name at least one tool.", param=param)
            return ToolChoice(True, choice.allowed_tools.mode == "required", names)
    elif choice.function is not None:
        return ToolChoice(True, True, (choice.function.name,))
    raise InvalidRequest(f"`{missing}` is missing.", param=missing)


def check_named(tools: msgspec.Raw, names: Collection[str]) -> None:
    """Check that the functions that a choice names are in `tools`.

    Raises:
        InvalidRequest: one isn't.
    """
    found = {tool.function.name for tool in decode_part(_tools, tools, "tools") or ()}
    for name in names:
        if name not in found:
            raise InvalidRequest(
                f"`tool_choice` names the function `{name}`, which is not in `tools`.",
                param="tool_choice",
            )


def only_allowed(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with only the tools that a `tool_choice` of `allowed_tools` allows, and with its
    mode as `tool_choice`, because vLLM does not support `allowed_tools`. The argument is not
    changed."""
    choice = fields.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return fields
    allowed = choice["allowed_tools"]
    names = {tool["function"]["name"] for tool in allowed["tools"]}
    tools = [tool for tool in fields["tools"] if tool["function"]["name"] in names]
    return fields | {"tools": tools, "tool_choice": allowed["mode"]}


def check_tools(raw: msgspec.Raw, *, must_use: bool) -> bool:
    """Check tools; returns whether there are any. `must_use`: the answer has to be a call of one,
    so that they may be no larger than any other constraint.

    Raises:
        InvalidRequest: they are wrong or too large.
    """
    _check_size(raw, "tools", MAX_CONSTRAINT_BYTES if must_use else MAX_TOOLS_BYTES)
    tools: list[_Tool] | None = decode_part(_tools, raw, "tools")
    for i, tool in enumerate(tools or ()):
        param = f"tools[{i}].function"
        if not tool.function.name:
            raise InvalidRequest(f"`{param}.name` must not be empty.", param=f"{param}.name")
        type_ = (tool.function.parameters or {}).get("type", b'"object"')
        if bytes(type_) != b'"object"':
            raise InvalidRequest(
                f"`{param}.parameters.type` must be `object`, because a function has named "
                "parameters.",
                param=f"{param}.parameters.type",
            )
    _check_schemas(bytes(raw), "tools")
    return bool(tools)


def check_client_tools(raw: msgspec.Raw, *, must_use: bool) -> list[str]:
    """As `check_tools`, for tools in the notation of Anthropic's API; returns their names.

    Raises:
        InvalidRequest: they are wrong or too large.
    """
    _check_size(raw, "tools", MAX_CONSTRAINT_BYTES if must_use else MAX_TOOLS_BYTES)
    tools: list[_ClientTool] | None = decode_part(_client_tools, raw, "tools")
    for i, tool in enumerate(tools or ()):
        if tool.type not in (None, "custom") or tool.input_schema is None:
            raise InvalidRequest(
                f"`tools[{i}]` has no `input_schema` or has the type `{tool.type}`: only "
                "tools that the client runs are supported.",
                param=f"tools[{i}]",
            )
        if bytes(tool.input_schema.get("type", b'"object"')) != b'"object"':
            param = f"tools[{i}].input_schema.type"
            raise InvalidRequest(f"`{param}` must be `object`.", param=param)
    _check_schemas(bytes(raw), "tools")
    return [tool.name for tool in tools or ()]


NAMESPACE, WEB_SEARCH = "namespace", "web_search"
"""Types of tools that agents send besides functions."""


def flat_name(namespace: str | None, name: str) -> str:
    """What a chat calls a function of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def check_function_tools(raw: msgspec.Raw, *, must_use: bool) -> dict[tuple[str, str], ToolField]:
    """As `check_tools`, for tools in the notation of the Responses API; returns the functions by
    their namespace (empty if they have none) and name. A web search without access to the web,
    which agents send where there is no search, is left out.

    Raises:
        InvalidRequest: they are wrong or too large.
    """
    _check_size(raw, "tools", MAX_CONSTRAINT_BYTES if must_use else MAX_TOOLS_BYTES)
    found: dict[tuple[str, str], ToolField] = {}
    for i, tool in enumerate(decode_part(_function_tools, raw, "tools") or ()):
        at = f"tools[{i}]"
        if tool.type == WEB_SEARCH and tool.external_web_access is False:
            continue
        if tool.type == NAMESPACE:
            _require_name(tool, at)
            for j, inner in enumerate(tool.tools):
                _check_function(inner, f"{at}.tools[{j}]")
                found[tool.name, inner.name] = inner
        else:
            _check_function(tool, at)
            found["", tool.name] = tool
    _check_schemas(bytes(raw), "tools")
    return found


def _check_function(tool: ToolField, at: str) -> None:
    if tool.type != "function":
        raise InvalidRequest(
            f"`{at}` has the type `{tool.type}`: only tools of type `function`, which the client "
            "runs, are supported.",
            param=f"{at}.type",
        )
    _require_name(tool, at)
    if bytes((tool.parameters or {}).get("type", b'"object"')) != b'"object"':
        param = f"{at}.parameters.type"
        raise InvalidRequest(
            f"`{param}` must be `object`, because a function has named parameters.", param=param
        )


def _require_name(tool: ToolField, at: str) -> None:
    if not tool.name:
        raise InvalidRequest(f"`{at}.name` is missing.", param=f"{at}.name")


def offer_tools(fields: dict[str, Any]) -> None:
    """Give each of a chat's `tools` a schema that accepts only objects. An empty list, which
    frameworks send, is no tools: it is left out with `tool_choice`."""
    tools = fields.get("tools")
    if tools == []:
        del fields["tools"]
        fields.pop("tool_choice", None)
    elif isinstance(tools, list):
        fields["tools"] = [_with_parameters(tool) for tool in tools]


def _with_parameters(tool: Any) -> Any:
    """A copy of the tool whose schema accepts only objects. If the schema is missing or empty, any
    value would satisfy it."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    parameters = function.get("parameters")
    if parameters is None:
        parameters = NO_PARAMETERS
    elif isinstance(parameters, dict) and not _SAYS_TYPE & parameters.keys():
        parameters = {"type": "object"} | parameters
    return tool | {"function": function | {"parameters": parameters}}


def _check_size(raw: msgspec.Raw, name: str, most: int) -> None:
    if (size := len(bytes(raw))) > most:
        raise InvalidRequest(f"`{name}` has {size} bytes: it can have at most {most}.", param=name)


# --- schemas -------------------------------------------------------------------------------------


@lru_cache(MAX_KNOWN)
def _check_schemas(raw: bytes, param: str) -> None:
    """Check that the schemas in this JSON can be compiled to grammars, and that those that the
    answer must follow can be enforced. Tools are held to theirs only if they are `strict`.

    Raises:
        InvalidRequest: one can't; the message has the path in the schema and the reason.
    """
    if param == "tools" and not _SUSPECT.search(raw):
        return
    for held in schemas_in(decode_part(msgspec.json.Decoder(), raw, param), param):
        _check_counts(held.schema, held.param)
        if is_circular(held.schema):
            raise InvalidRequest(
                f"`{held.param}` has a schema whose `$ref` refers only to itself.",
                param=held.param,
            )
        if param == "tools" and not held.strict:
            continue
        try:
            rewrite(held.schema)
        except UnsupportedSchema as refused:
            raise InvalidRequest(f"`{held.param}`: {refused}.", param=held.param) from None


class HeldSchema(NamedTuple):
    """A root schema, the path of its field, and whether beside it there is `strict`."""

    param: str
    schema: dict[str, Any]
    strict: bool


def schemas_in(constraint: Any, param: str) -> Iterator[HeldSchema]:
    """The root schemas in the constraint in the field `param`; references are relative to them.
    Everything inside a schema is part of it, whatever its key, so each is visited once."""
    rest = [(param, constraint)]
    while rest:
        at, value = rest.pop()
        if isinstance(value, list):
            rest += [(f"{at}[{i}]", inner) for i, inner in enumerate(value)]
        elif isinstance(value, dict):
            for name, inner in value.items():
                if name in _HOLDERS:
                    yield from _held((f"{at}.{name}", inner), strict=value.get("strict") is True)
                elif name == "structural_tag":
                    rest.append((f"{at}.{name}", _decoded(inner)))
                else:
                    rest.append((f"{at}.{name}", inner))


def _held(field: tuple[str, Any], *, strict: bool) -> Iterator[HeldSchema]:
    at, inner = field[0], _decoded(field[1])
    if at == _NESTED and isinstance(inner, dict):
        at, inner = f"{at}.schema", inner.get("schema")
    if isinstance(inner, dict):
        yield HeldSchema(at, inner, strict)


def _decoded(value: Any) -> Any:
    """The value; JSON instead of text, in which vLLM also accepts schemas and tags."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _check_counts(schema: dict[str, Any], param: str) -> None:
    items = 0
    for part in objects_in(schema):
        for name in _COUNTS & part.keys():
            count = part[name]
            if isinstance(count, dict | list):  # a property with this name
                continue
            if type(count) is not int or count < 0:
                raise InvalidRequest(
                    f"`{param}`: `{name}` is {count!r}: it must be an integer of at least 0.",
                    param=param,
                )
            items += count if name.endswith("Items") else 0
    if items > MAX_ITEMS:
        raise InvalidRequest(
            f"`{param}`: `minItems` and `maxItems` of a schema add up to {items}: at most "
            f"{MAX_ITEMS} are allowed.",
            param=param,
        )
