"""The body of a request as what was said in it, by speaker.

For chats of OpenAI and Anthropic, responses, completions and embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PICTURES = ("image", "image_url", "input_image")
CALLS = ("function_call", "tool_use")
RESULTS = ("function_call_output", "tool_result")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that a model called, and its arguments, usually JSON."""

    name: str
    arguments: str

    @classmethod
    def of(cls, call: Mapping[str, Any]) -> ToolUse:
        """From OpenAI's `function`, or a part of a message or response."""
        given = call.get("arguments", call.get("input", ""))
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return cls(str(call.get("name") or ""), text)

    @property
    def pretty(self) -> str:
        """The arguments, with the fields of JSON on lines of their own."""
        return pretty(self.arguments)


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """What a speaker said: `role` is OpenAI's, `reasoning` what a model thought first. Pictures are
    only counted."""

    role: str
    text: str = ""
    calls: tuple[ToolUse, ...] = ()
    reasoning: str = ""
    pictures: int = 0

    @property
    def whole(self) -> str:
        """All of it as one text."""
        calls = [f"{call.name}({call.arguments})" for call in self.calls]
        return "\n".join([*filter(None, (self.reasoning, self.text)), *calls])


def turns_of(body: str) -> list[SpokenTurn]:
    """The turns of a body, in order; none if it has no known form, or was cut."""
    try:
        request = json.loads(body)
        return list(_turns(request))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


def pretty(text: str) -> str:
    """JSON with its fields on lines of their own; any other text unchanged."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return text


def _turns(request: Mapping[str, Any]) -> Iterator[SpokenTurn]:
    for name in ("system", "instructions"):
        if given := request.get(name):
            yield from _content("system", given)
    for message in request.get("messages") or ():
        yield from _message(message)
    for name in ("prompt", "input"):
        for one in _items(request.get(name) or []):
            yield from _message(one if isinstance(one, Mapping) else {"content": one})


def _message(message: Mapping[str, Any]) -> Iterator[SpokenTurn]:
    """The turns of a message, or of an item of a response's input."""
    if message.get("type") in (*CALLS, *RESULTS):
        yield from _content("assistant", [message])
        return
    calls = [ToolUse.of(one.get("function") or {}) for one in message.get("tool_calls") or ()]
    role = str(message.get("role") or "user")
    yield from _content(role, message.get("content"), calls)


def _content(role: str, content: Any, calls: Iterable[ToolUse] = ()) -> Iterator[SpokenTurn]:
    """The turn with this content, a text or parts; results of tools are turns of their own."""
    texts, made, pictures = [], list(calls), 0
    for part in _items(content):
        kind = part.get("type") if isinstance(part, Mapping) else ""
        if kind in RESULTS:
            yield from _content("tool", part.get("output", part.get("content")))
        elif kind in CALLS:
            made.append(ToolUse.of(part))
        elif kind in PICTURES:
            pictures += 1
        else:
            texts.append(_text(part))
    if any(texts) or made or pictures:
        yield SpokenTurn(role, "\n".join(filter(None, texts)), tuple(made), "", pictures)


def _items(given: Any) -> list[Any]:
    """The items of a list; anything else, and a list of token ids, is one."""
    is_list = isinstance(given, list) and not any(isinstance(one, int) for one in given)
    return given if is_list else [given]


def _text(part: Any) -> str:
    if isinstance(part, str) or part is None:
        return part or ""
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json.dumps(part, ensure_ascii=False)
