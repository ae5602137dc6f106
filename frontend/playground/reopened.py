"""A stored request as a pane of the playground: what was asked, and what was answered."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from frontend.playground.messages import Parameters, ToolCall
from frontend.playground.saved import Node, Pane


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        """Its text; pictures are left out."""
        parts = self.content or ""
        if isinstance(parts, str):
            return parts
        return "\n".join(str(part["text"]) for part in parts if part.get("type") == "text")


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    tools: list[dict[str, Any]] | None = None


def pane_of(body: str, answer: str) -> Pane | None:
    """The pane with this chat; None if the body is not a chat, or was cut off."""
    try:
        request = msgspec.json.decode(body, type=_Request)
    except (msgspec.DecodeError, RecursionError):
        return None
    system = [one.text for one in request.messages if one.role in ("system", "developer")]
    parameters = Parameters(
        system="\n\n".join(system),
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        stop=[request.stop] if isinstance(request.stop, str) else request.stop or [],
        seed=request.seed,
        tools=request.tools or [],
    )
    nodes = _nodes(request.messages)
    if nodes and nodes[-1].role == "user" and answer:
        nodes.append(Node(len(nodes) + 1, len(nodes), "assistant", answer))
    return Pane(request.model, parameters, nodes, len(nodes) or None) if nodes else None


def _nodes(messages: list[_Message]) -> list[Node]:
    """Alternating questions and answers, from the first question on; adjacent ones are joined."""
    nodes: list[Node] = []
    for one in messages:
        role: Literal["user", "assistant"] = "assistant" if one.role == "assistant" else "user"
        if one.role in ("system", "developer") or (not nodes and role == "assistant"):
            continue
        if not nodes or nodes[-1].role != role:
            nodes.append(Node(len(nodes) + 1, len(nodes) or None, role, ""))
        last = nodes[-1]
        if one.role == "tool":
            last.results = {**last.results, one.tool_call_id: one.text}
        else:
            last.content = "\n\n".join(filter(None, (last.content, one.text)))
            last.calls = [*last.calls, *(one.tool_calls or [])]
    return nodes
