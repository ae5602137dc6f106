"""What an answer is held to, a response format, a grammar or tools, as far as the gateway looks.

Each becomes a grammar on the engine, for all of whose requests it is made on one loop. So they are
small, have the shape of JSON schemas, and mean something.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from inference.errors import InvalidRequest
from inference.operations.bodies.reading import decode_part

MAX_CONSTRAINT_BYTES = 64 << 10
"""Of a schema or grammar as JSON. One of a megabyte held everybody's streams up for minutes."""
MAX_TOOLS_BYTES = 256 << 10
"""Of tools that an answer may use: most of theirs is text that describes them."""

NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
"""Of a function that takes none, in which case OpenAI lets them be left out."""

Schema = dict[str, msgspec.Raw]

MAX_ITEMS = 10_000
"""Of the arrays of a schema together, as it counts them. An engine's grammar has a rule for each:
10^9 of them took its memory and minutes, and ended it."""

MAX_DIGITS = 9
"""Of a place in an array. Python converts none of thousands."""

_COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
_SUSPECT = re.compile(rb"\$ref|(?:min|max)(?:Items|Length|Properties)")
"""What is not in most schemas, and may be wrong."""
_HOLDERS = {"schema", "json_schema", "json", "parameters", "input_schema"}
"""The fields of constraints and tools that hold schemas."""
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_SAYS_TYPE = {"type", "$ref", "enum", "const", *_ALTERNATIVES}
"""Keywords that say what a value is; a schema without them takes any."""


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
    """An object: one function by its name, or those that may be called."""

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


class FunctionTool(msgspec.Struct):
    """A function as the Responses API has it."""

    name: Annotated[str, msgspec.Meta(min_length=1)] = ""
    type: str = ""
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


_function_tools = msgspec.json.Decoder(list[FunctionTool] | None)
_response_format = msgspec.json.Decoder(_ResponseFormat | None)
_tools = msgspec.json.Decoder(list[_Tool] | None)


def check_response_format(raw: msgspec.Raw) -> None:
    """See that it is one, and bearable.

    Raises:
        InvalidRequest: it isn't.
    """
    _check_size(raw, "response_format", MAX_CONSTRAINT_BYTES)
    found: _ResponseFormat | None = decode_part(_response_format, raw, "response_format")
    if found is not None and found.type == "json_schema" and found.json_schema is None:
        param = "response_format.json_schema"
        raise InvalidRequest(f"`{param}` is missing.", param=param)
    _check_schemas(raw, "response_format")


def check_schema(raw: msgspec.Raw, param: str) -> None:
    """See that what holds a schema is bearable.

    Raises:
        InvalidRequest: it isn't.
    """
    _check_size(raw, param, MAX_CONSTRAINT_BYTES)
    _check_schemas(raw, param)


def check_structured_outputs(raw: msgspec.Raw) -> None:
    """See that it is bearable; the engine reads it.

    Raises:
        InvalidRequest: it isn't.
    """
    check_schema(raw, "structured_outputs")


class ToolChoice(NamedTuple):
    """What `tool_choice` asks for: may there be calls, must there be one, and of which functions
    alone, empty where any will do."""

    may_use: bool
    must_use: bool
    names: tuple[str, ...] = ()


def read_tool_choice(raw: msgspec.Raw) -> ToolChoice:
    """What it asks for, where it is there or not.

    Raises:
        InvalidRequest: it is none.
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
                raise InvalidRequest(f"`{param}` must name at least one.", param=param)
            return ToolChoice(True, choice.allowed_tools.mode == "required", names)
    elif choice.function is not None:
        return ToolChoice(True, True, (choice.function.name,))
    raise InvalidRequest(f"`{missing}` is missing.", param=missing)


def check_named(tools: msgspec.Raw, names: Collection[str]) -> None:
    """See that the functions that a choice names are there.

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
    """The fields with those tools alone that a `tool_choice` of `allowed_tools` allows, which is
    then its mode. They are not changed. vLLM knows no such choice."""
    choice = fields.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return fields
    allowed = choice["allowed_tools"]
    names = {tool["function"]["name"] for tool in allowed["tools"]}
    tools = [tool for tool in fields["tools"] if tool["function"]["name"] in names]
    return fields | {"tools": tools, "tool_choice": allowed["mode"]}


def check_tools(raw: msgspec.Raw, *, must_use: bool) -> bool:
    """See that these are tools, and bearable; whether there are any. `must_use`: the answer has to
    be a call of one.

    Raises:
        InvalidRequest: they aren't.
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
                f"`{param}.parameters.type` must be `object`: a function takes named parameters.",
                param=f"{param}.parameters.type",
            )
    _check_schemas(raw, "tools")
    return bool(tools)


def check_client_tools(raw: msgspec.Raw, *, must_use: bool) -> list[str]:
    """As `check_tools`, of tools as Anthropic's API has them; their names.

    Raises:
        InvalidRequest: they aren't.
    """
    _check_size(raw, "tools", MAX_CONSTRAINT_BYTES if must_use else MAX_TOOLS_BYTES)
    tools: list[_ClientTool] | None = decode_part(_client_tools, raw, "tools")
    for i, tool in enumerate(tools or ()):
        if tool.type not in (None, "custom") or tool.input_schema is None:
            raise InvalidRequest(
                f"`tools[{i}]` has no `input_schema` or is of type `{tool.type}`: only tools that "
                "you run yourself are served.",
                param=f"tools[{i}]",
            )
        if bytes(tool.input_schema.get("type", b'"object"')) != b'"object"':
            param = f"tools[{i}].input_schema.type"
            raise InvalidRequest(f"`{param}` must be `object`.", param=param)
    _check_schemas(raw, "tools")
    return [tool.name for tool in tools or ()]


def check_function_tools(raw: msgspec.Raw, *, must_use: bool) -> list[FunctionTool]:
    """As `check_tools`, of tools as the Responses API has them; these.

    Raises:
        InvalidRequest: they aren't.
    """
    _check_size(raw, "tools", MAX_CONSTRAINT_BYTES if must_use else MAX_TOOLS_BYTES)
    tools: list[FunctionTool] = decode_part(_function_tools, raw, "tools") or []
    for i, tool in enumerate(tools):
        if tool.type != "function":
            raise InvalidRequest(
                f"`tools[{i}]` is of type `{tool.type}`: only tools of type `function` are served, "
                "which you run yourself.",
                param=f"tools[{i}].type",
            )
        if not tool.name:
            raise InvalidRequest(f"`tools[{i}].name` is missing.", param=f"tools[{i}].name")
        if bytes((tool.parameters or {}).get("type", b'"object"')) != b'"object"':
            param = f"tools[{i}].parameters.type"
            raise InvalidRequest(
                f"`{param}` must be `object`: a function takes named parameters.", param=param
            )
    _check_schemas(raw, "tools")
    return tools


def with_parameters(tool: Any) -> Any:
    """The tool with a schema that takes objects alone: without one, or with an empty one, any value
    is an answer that holds to it. The tool is not changed."""
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
        raise InvalidRequest(f"`{name}` has {size} bytes: it can have {most} at most.", param=name)


# --- schemas -------------------------------------------------------------------------------------


def _check_schemas(raw: msgspec.Raw, param: str) -> None:
    """See that the schemas in this JSON can be made grammars of.

    Raises:
        InvalidRequest: one has counts that are none, or too large, or is nothing but itself, over
            one `$ref` or several: no value is told from any other by it.
    """
    if not _SUSPECT.search(bytes(raw)):
        return
    for schema in schemas_in(decode_part(msgspec.json.Decoder(), raw, param)):
        _check_counts(schema, param)
        if _is_circular(schema):
            raise InvalidRequest(
                f"`{param}` holds a schema whose `$ref` leads to itself and nowhere else.",
                param=param,
            )


def schemas_in(constraint: Any) -> Iterator[dict[str, Any]]:
    """The schemas that a constraint holds: whole ones, in which references start. What is within
    one is a part of it, whatever its name, so that each is walked once."""
    rest = [constraint]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            for name, inner in value.items():
                if name in _HOLDERS:
                    yield from _held(name, inner)
                else:
                    rest.append(inner)


def _held(name: str, inner: Any) -> Iterator[dict[str, Any]]:
    if isinstance(inner, str):  # vLLM takes a schema as text, too
        try:
            inner = json.loads(inner)
        except (ValueError, RecursionError):
            return
    if not isinstance(inner, dict):
        return
    yield inner
    if name == "json_schema" and isinstance(whole := inner.get("schema"), dict):
        yield whole  # of a response format, which names its schema; a structural tag does not


def _check_counts(schema: dict[str, Any], param: str) -> None:
    items = 0
    for part in _within(schema):
        for name in _COUNTS & part.keys():
            count = part[name]
            if isinstance(count, dict | list):  # a property of this name
                continue
            if type(count) is not int or count < 0:
                raise InvalidRequest(
                    f"`{param}`: `{name}` is {count!r}: it must be a whole number from 0.",
                    param=param,
                )
            items += count if name.endswith("Items") else 0
    if items > MAX_ITEMS:
        raise InvalidRequest(
            f"`{param}`: `minItems` and `maxItems` of a schema add up to {items}: it can be "
            f"{MAX_ITEMS} at most.",
            param=param,
        )


def _within(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in it, and itself."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            yield value
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _is_circular(root: dict[str, Any]) -> bool:
    """Whether one of its schemas leads back to itself by references and alternatives alone."""
    done: set[int] = set()
    for start in _within(root):
        on_path: dict[int, Iterator[dict[str, Any]]] = {}
        path = [start]
        while path:
            here = path[-1]
            if id(here) in done:
                path.pop()
                continue
            if id(here) not in on_path:
                on_path[id(here)] = _same_value(here, root)
            if (following := next(on_path[id(here)], None)) is None:
                done.add(id(here))
                del on_path[id(here)]
                path.pop()
            elif id(following) in on_path:
                return True
            else:
                path.append(following)
    return False


def _same_value(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that hold of the very value of which this one does."""
    if isinstance(reference := schema.get("$ref"), str):
        target = _resolved(reference, root)
        if isinstance(target, dict):
            yield target
    for name in _ALTERNATIVES:
        if isinstance(several := schema.get(name), list):
            yield from (one for one in several if isinstance(one, dict))


def _resolved(reference: str, root: Any) -> Any:
    """What a reference within the same schema means; None where that is nothing."""
    if reference.partition("#")[0]:
        return None
    found = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and len(step) < MAX_DIGITS:
            found = found[int(step)] if int(step) < len(found) else None
        else:
            return None
    return found
