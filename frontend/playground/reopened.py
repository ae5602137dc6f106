"""A stored request as a pane of the playground: what was asked, and what was answered.

What a pane cannot hold is named in `Reopened.left`; nothing is left out silently.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec

from frontend.playground.checks import OWN, SET_HERE
from frontend.playground.messages import TOP_LOGPROBS, Function, Parameters, ToolCall
from frontend.playground.saved import Node, Pane
from inference.operations.chat import CHAT
from tenants.content.turns import SpokenTurn

MAX_NAMED = 12
"""At most how many things the notice names; a body can have any number of fields."""
MAX_NAME_CHARS = 60

_DELIVERY = {"stream", "stream_options"}
"""Fields that change how an answer is sent, not the answer."""
_OF_MESSAGES = {"role", "content", "tool_calls", "tool_call_id"}
_SYSTEM = ("system", "developer")


class _Call(msgspec.Struct):
    function: Function
    id: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """Its text; other parts are left out."""
        parts = self.content or ""
        if isinstance(parts, str):
            return parts
        return "\n".join(str(part.get("text")) for part in parts if part.get("type") == "text")

    @property
    def calls(self) -> list[ToolCall]:
        return [ToolCall(one.id, one.function) for one in self.tool_calls or ()]


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: bool | None = None
    tools: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Reopened:
    """A pane, and what of the request is not in it."""

    pane: Pane
    left: tuple[str, ...]

    @property
    def notice(self) -> str:
        """A sentence that names what was left out or changed; empty if nothing was."""
        if not self.left:
            return ""
        more = len(self.left) - MAX_NAMED
        named = [*self.left[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
        return f"Not carried over from the request: {', '.join(named)}."


def reopened(body: str, answer: SpokenTurn | None) -> Reopened | None:
    """The chat as a pane; None if the body is not a chat, or was cut off."""
    try:
        request = msgspec.json.decode(body, type=_Request)
        given: dict[str, Any] = json.loads(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    nodes = _nodes(request.messages)
    if not nodes:
        return None
    if nodes[-1].role == "user" and answer is not None:
        nodes.append(_answered(answer, len(nodes)))
    parameters = _parameters(request, given)
    left = (*_left_fields(given), *_left_in_messages(given["messages"], request.messages))
    return Reopened(Pane(request.model, parameters, nodes, len(nodes)), left)


def _parameters(request: _Request, given: Mapping[str, Any]) -> Parameters:
    schema = _schema(given.get("response_format"))
    extra = {name: value for name, value in given.items() if _is_extra(name, value)}
    if schema is not None:
        del extra["response_format"]
    return Parameters(
        system="\n\n".join(one.text for one in request.messages if one.role in _SYSTEM),
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        stop=[request.stop] if isinstance(request.stop, str) else request.stop or [],
        seed=request.seed,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        schema=schema,
        tools=request.tools or [],
        extra=extra,
        logprobs=bool(request.logprobs),
    )


def _schema(response_format: Any) -> dict[str, Any] | None:
    """The schema of a response format that the field for it expresses completely."""
    if not isinstance(response_format, dict):
        return None
    inner = response_format.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if isinstance(schema, dict) and response_format == Parameters(schema=schema).response_format:
        return schema
    return None


def _is_extra(name: str, value: Any) -> bool:
    """Whether a field goes into the pane's other fields."""
    taken = name in CHAT.accepted or name == "chat_template_kwargs"
    return value is not None and taken and name not in OWN and name not in SET_HERE


def _left_fields(given: Mapping[str, Any]) -> Iterator[str]:
    """The request's fields that no pane has."""
    for name, value in given.items():
        carried = name in OWN or name in ("model", "messages") or name in _DELIVERY
        harmless = value is None or (name == "n" and value == 1)
        if not carried and not harmless and not _is_extra(name, value):
            yield f"`{name[:MAX_NAME_CHARS]}`"
    if given.get("logprobs") and given.get("top_logprobs", TOP_LOGPROBS) != TOP_LOGPROBS:
        yield f"`top_logprobs` (here {TOP_LOGPROBS})"


def _left_in_messages(given: list[dict[str, Any]], messages: list[_Message]) -> Iterator[str]:
    """What of the messages has no place in a pane's tree, or another one."""
    others = Counter[str]()
    for one in messages:
        for part in one.content if isinstance(one.content, list) else ():
            others[str(part.get("type"))[:MAX_NAME_CHARS]] += part.get("type") != "text"
    for kind, count in others.items():
        if count:
            name = "picture" if kind == "image_url" else f"`{kind}` part"
            yield f"{count} {name}{'' if count == 1 else 's'}"
    for name in dict.fromkeys(name for one in given for name in one if name not in _OF_MESSAGES):
        yield f"`{name[:MAX_NAME_CHARS]}` of messages"
    roles = [one.role for one in messages]
    asked = [role for role in roles if role not in _SYSTEM]
    if len(asked) < len(roles) and roles != ["system", *asked]:
        yield "the roles and places of system messages (they are one system prompt)"
    if asked[0] == "assistant":
        yield "the answers before the first question"
    if _are_joined(asked):
        yield "the ends of messages in a row by one speaker (they are one message)"


def _are_joined(roles: list[str]) -> bool:
    """Whether messages with text follow others of the same side; results of tools stay apart."""
    return any(role == after != "tool" for role, after in pairwise(roles))


def _answered(answer: SpokenTurn, last: int) -> Node:
    """The answer as the message after the `last` one; its calls get ids, which are not stored."""
    calls = [
        ToolCall(f"call_{number}", Function(one.name, one.arguments))
        for number, one in enumerate(answer.calls, start=1)
    ]
    text = "\n".join(filter(None, (answer.reasoning, answer.text)))
    return Node(last + 1, last, "assistant", text, calls)


def _nodes(messages: list[_Message]) -> list[Node]:
    """Alternating questions and answers, from the first question on; adjacent ones are joined."""
    nodes: list[Node] = []
    for one in messages:
        role: Literal["user", "assistant"] = "assistant" if one.role == "assistant" else "user"
        if one.role in _SYSTEM or (not nodes and role == "assistant"):
            continue
        if not nodes or nodes[-1].role != role:
            nodes.append(Node(len(nodes) + 1, len(nodes) or None, role, ""))
        last = nodes[-1]
        if one.role == "tool":
            last.results = {**last.results, one.tool_call_id or "": one.text}
        else:
            last.content = "\n\n".join(filter(None, (last.content, one.text)))
            last.calls = [*last.calls, *one.calls]
    return nodes
