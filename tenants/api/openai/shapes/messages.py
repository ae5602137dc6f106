"""Messages, as in Anthropic's API."""

from __future__ import annotations

from typing import Any, Literal

from inference.operations.bodies.ranges import Positive, Share, Temperature, TopK
from tenants.api.openai.shapes.base import Open, Shape
from tenants.api.openai.shapes.generation import FinishDetails


class Tool(Open):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class Block(Open):
    """A part of a turn's content, by its type."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]


class MessagesTurn(Open):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class CountRequest(Open):
    """A conversation as in Anthropic's API."""

    model: str
    messages: list[MessagesTurn]
    context_management: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    system: str | list[Block] | None = None
    thinking: dict[str, Any] | None = None
    tool_choice: dict[str, Any] | None = None
    tools: list[Tool] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """A conversation, and parameters for generating its next turn."""

    max_tokens: Positive
    metadata: dict[str, str | None] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: Share | None = None


class ThinkingTokens(Shape):
    thinking_tokens: int


class MessageUsage(Shape):
    """`input_tokens` are those that the prefix cache did not hold."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    cache_creation: None
    inference_geo: None
    output_tokens_details: ThinkingTokens
    server_tool_use: None
    service_tier: Literal["standard"]


class AppliedEdits(Shape):
    applied_edits: list[dict[str, Any]]


class AnthropicMessage(Shape):
    """The assistant's turn."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    container: None
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    stop_details: None
    usage: MessageUsage
    context_management: AppliedEdits | None = None
    """Present if the request had it."""
    finish_details: FinishDetails | None = None


class TokenCount(Shape):
    input_tokens: int
