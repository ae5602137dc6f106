"""Settings that are JSON, each with what page and server say of it: nothing if it is valid."""

from __future__ import annotations

from typing import Any

NAME = "`tools[0].function.name` must be a text that is not empty."


def tool(name: Any = "sky", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


TOOLS: list[tuple[Any, str]] = [
    ([], ""), ([tool()], ""), ([{"function": {"name": "sky"}}], ""), ([tool("files.read")], ""),
    ([tool(parameters=None)], ""), ([tool(parameters={"type": "object"})], ""),
    ({}, "`tools` must be a list of tools."), ("sky", "`tools` must be a list of tools."),
    (None, "`tools` must be a list of tools."),
    ([tool(), 7], "`tools[1]` must be an object."), ([[]], "`tools[0]` must be an object."),
    ([None], "`tools[0]` must be an object."),
    ([{"type": "web_search"}], "`tools[0].type` must be `function`."),
    ([{"type": "function"}], "`tools[0].function` must be an object with a `name`."),
    ([{"function": []}], "`tools[0].function` must be an object with a `name`."),
    ([{"function": {}}], "`tools[0].function.name` is missing."),
    ([tool("")], NAME), ([tool(7)], NAME), ([tool(None)], NAME), ([tool([])], NAME),
    ([tool(parameters=[])], "`tools[0].function.parameters` must be an object: a JSON schema."),
    ([tool(parameters="")], "`tools[0].function.parameters` must be an object: a JSON schema."),
]  # fmt: skip
"""Values of `tools`."""

EXTRAS: list[tuple[Any, str]] = [
    ({}, ""), ({"tool_choice": "none", "logit_bias": {"7": 1}}, ""),
    ({"stream": True}, "`stream` is set by the playground."),
    ({"min_p": 0.1, "model": "x"}, "`model` is set by the playground."),
    ({"temperature": 1}, "`temperature` has its own setting: Temperature."),
    ({"max_completion_tokens": 1}, "`max_completion_tokens` has its own setting: Max tokens."),
    ({"response_format": {}}, "`response_format` is set by the JSON schema."),
    ([], 'Other fields are an object, such as {"tool_choice": "required"}.'),
]  # fmt: skip
"""Values of the other fields, beside a JSON schema."""
