"""Checks of a pane's settings that are JSON; the page makes the same ones while they are typed
(`frontend/static/js/playground/checks.js`), in the same words."""

from __future__ import annotations

from typing import Any

from inference.errors import InvalidRequest

OWN = {
    "frequency_penalty": "Frequency penalty",
    "logprobs": "Show token probabilities",
    "max_completion_tokens": "Max tokens",
    "max_tokens": "Max tokens",
    "presence_penalty": "Presence penalty",
    "seed": "Seed",
    "stop": "Stop sequences",
    "temperature": "Temperature",
    "tools": "Tools",
    "top_logprobs": "Show token probabilities",
    "top_p": "Top-p",
}
"""The fields of a request that have a setting of their own, with its label."""
SET_HERE = frozenset({"echo", "messages", "model", "n", "stream", "stream_options"})
"""The fields that the playground sets, or whose answers it could not show."""


def check_tools(tools: list[Any]) -> None:
    """Check the shape of tools; the gateway checks their schemas.

    Raises:
        InvalidRequest: one is wrong.
    """
    for at, tool in enumerate(tools):
        if (found := _wrong(tool, f"tools[{at}]")) is not None:
            param, problem = found
            raise InvalidRequest(f"`{param}` {problem}.", param=param)


def _wrong(tool: Any, path: str) -> tuple[str, str] | None:
    """The wrong field of a tool, and what is wrong with it."""
    if not isinstance(tool, dict):
        return path, "must be an object"
    if tool.get("type") not in (None, "function"):
        return f"{path}.type", "must be `function`"
    function = tool.get("function")
    if not isinstance(function, dict):
        return f"{path}.function", "must be an object with a `name`"
    if "name" not in function:
        return f"{path}.function.name", "is missing"
    if not isinstance(function["name"], str) or not function["name"]:
        return f"{path}.function.name", "must be a text that is not empty"
    if not isinstance(function.get("parameters"), dict | None):
        return f"{path}.function.parameters", "must be an object: a JSON schema"
    return None


def check_extra(extra: dict[str, Any], *, has_schema: bool) -> None:
    """Check the other fields of a request. `has_schema`: the answer's schema is set.

    Raises:
        InvalidRequest: one is set elsewhere.
    """
    for name in extra:
        if name in SET_HERE:
            raise InvalidRequest(f"`{name}` is set by the playground.", param=name)
        if name in OWN:
            message = f"`{name}` has its own setting: {OWN[name]}."
            raise InvalidRequest(message, param=name)
        if name == "response_format" and has_schema:
            raise InvalidRequest("`response_format` is set by the JSON schema.", param=name)
