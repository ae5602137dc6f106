"""Responses and conversations."""

from __future__ import annotations

from typing import Any, Literal

from inference.operations.bodies.ranges import Positive, TopLogprobs
from tenants.api.openai.shapes.base import Listed, Open, Shape
from tenants.api.openai.shapes.generation import FinishDetails, Sampled


class FunctionTool(Open):
    """A function that the client runs."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Item(Open):
    """An item of a conversation, by its type, which may be omitted for a message."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None


class ResponsesRequest(Sampled, kw_only=True):
    """Instructions and items, and parameters for generating the next ones."""

    input: str | list[Item]
    background: bool | None = None
    conversation: str | dict[str, str] | None = None
    chat_template_kwargs: dict[str, bool] | None = None
    include: list[str] | None = None
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[FunctionTool] | None = None
    top_logprobs: TopLogprobs | None = None
    truncation: Literal["auto", "disabled"] | None = None


class InputTokensRequest(Open):
    """The fields of a request for a response that its prompt depends on."""

    model: str
    chat_template_kwargs: dict[str, bool] | None = None
    conversation: str | dict[str, str] | None = None
    input: str | list[Item] | None = None
    instructions: str | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[FunctionTool] | None = None
    truncation: Literal["auto", "disabled"] | None = None


class InputTokens(Shape):
    """How many tokens the model would read."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class InputTokensDetails(Shape):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Shape):
    reasoning_tokens: int


class ResponseUsage(Shape):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Shape):
    reason: Literal["max_output_tokens"]


class ResponseObject(Shape):
    """The parameters of a request, and the items of its answer."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: dict[str, Any] | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[dict[str, Any]]
    previous_response_id: str | None
    store: bool
    usage: ResponseUsage | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default", "flex"]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    finish_details: FinishDetails | None = None
    conversation: dict[str, str] | None = None


class ResponseItems(Listed, kw_only=True):
    """The items that the model was given for a response."""

    data: list[Item]


class DeletedResponse(Shape):
    id: str
    object: Literal["response"]
    deleted: bool


class ConversationRequest(Shape, kw_only=True):
    """The items that a conversation begins with."""

    items: list[Item] | None = None
    metadata: dict[str, str] | None = None


class ConversationUpdate(Shape):
    metadata: dict[str, str] | None


class ConversationItems(Shape):
    """Items to add."""

    items: list[Item]


class ConversationObject(Shape):
    """A conversation that responses continue."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(Shape):
    id: str
    object: Literal["conversation.deleted"]
    deleted: bool
