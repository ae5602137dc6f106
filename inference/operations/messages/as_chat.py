"""A request of Anthropic's API as a chat of OpenAI's, for servers that have only that.

Thoughts of earlier turns are left out, as Anthropic's API itself leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import msgspec

from inference.errors import InvalidRequest

SAME = ("max_tokens", "stream", "temperature", "top_k", "top_p")
"""Fields with the same name and meaning in both."""
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class _Thinking(msgspec.Struct):
    type: Literal["enabled", "adaptive", "disabled"]


class _Format(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None


T = TypeVar("T")


def chat_of(fields: dict[str, Any], max_model_len: int) -> dict[str, Any]:
    """The fields of the chat. `fields` is what `Messages.allowed` returned; agents ask for more
    output than any context of `max_model_len` tokens holds, and get what it can hold.

    Raises:
        InvalidRequest: `output_config` or `thinking` has a wrong shape.
    """
    chat: dict[str, Any] = {name: fields[name] for name in SAME if name in fields}
    if "max_tokens" in chat:
        chat["max_tokens"] = min(chat["max_tokens"], max_model_len - 1)
    chat["messages"] = list(_messages(fields))
    if fields.get("stop_sequences"):
        chat["stop"] = fields["stop_sequences"]
    if tools := fields.get("tools"):
        chat["tools"] = [_tool(one) for one in tools]
        chat |= _choice(fields.get("tool_choice") or {})
    return chat | _output(fields)


def _messages(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if system := _text(fields.get("system")):
        yield {"role": "system", "content": system}
    for turn in fields["messages"]:
        if isinstance(turn["content"], str):
            yield {"role": turn["role"], "content": turn["content"]}
        elif turn["role"] == "assistant":
            yield _assistant_message(turn["content"])
        else:
            yield from _asked(turn["role"], turn["content"])


def _assistant_message(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's turn: its text, and its calls."""
    message: dict[str, Any] = {"role": "assistant", "content": _text(blocks) or None}
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {
                "name": block["name"],
                "arguments": msgspec.json.encode(block["input"]).decode(),
            },
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return message | {"tool_calls": calls} if calls else message


def _asked(role: str, blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The results of tools, each as a message, then the text."""
    for block in blocks:
        if block["type"] == "tool_result":
            result = _text(block.get("content"))
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": result}
    if text := _text(blocks):
        yield {"role": role, "content": text}


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content or () if block["type"] == "text")


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {}}
    kept = {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function | kept}


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    kind = choice.get("type", "auto")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    chat: dict[str, Any] = {"tool_choice": named if kind == "tool" else CHOICES[kind]}
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat


def _output(fields: dict[str, Any]) -> dict[str, Any]:
    """The form of the answer, and how much the model thinks before it. A model that is asked to
    think does so as its server has it by default."""
    config = _read(fields, "output_config", _OutputConfig) or _OutputConfig()
    thinking = _read(fields, "thinking", _Thinking)
    chat: dict[str, Any] = {}
    if config.effort is not None:
        chat["reasoning_effort"] = config.effort
    if thinking is not None and thinking.type == "disabled":
        chat["reasoning_effort"] = "none"
    if config.format is not None:
        schema = {"name": "answer", "schema": config.format.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat


def _read(fields: dict[str, Any], name: str, type_: type[T]) -> T | None:
    if fields.get(name) is None:
        return None
    try:
        return msgspec.convert(fields[name], type_)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"`{name}`: {error}.", param=name) from None
