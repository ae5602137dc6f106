"""Chats and completions."""

from __future__ import annotations

from typing import Any, Literal

from inference.operations.bodies.ranges import (
    Count,
    Factor,
    Penalty,
    Positive,
    Seed,
    Share,
    Temperature,
    TopK,
    TopLogprobs,
)
from tenants.api.openai.shapes.base import Open

Tier = Literal["auto", "default", "flex", "priority", "scale", "fast"]


class StreamOptions(Open):
    include_usage: bool | None = None


class Sampled(Open):
    """Fields of any request that generates."""

    model: str
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    frequency_penalty: Penalty | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[str, float] | None = None
    min_p: Share | None = None
    min_tokens: Count | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Factor | None = None
    seed: Seed | None = None
    service_tier: Tier | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: Share | None = None
    user: str | None = None


class Generation(Sampled):
    """Fields of a request whose answer is a list of choices."""

    max_tokens: Count | None = None
    echo: bool | None = None
    n: Positive | None = None
    prompt_logprobs: TopLogprobs | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    stream_options: StreamOptions | None = None


class TextPart(Open):
    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class GivenMessage(Open):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatRequest(Generation, kw_only=True):
    """Messages, and parameters for generating the next one."""

    messages: list[GivenMessage]
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, bool] | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    logprobs: bool | None = None
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    safety_identifier: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: TopLogprobs | None = None


class CompletionRequest(Generation, kw_only=True):
    """One or more prompts, as texts or as tokens, and parameters for continuing them."""

    prompt: str | list[str | int | list[int]]
    add_special_tokens: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


class FinishDetails(Open):
    """The limit that ended an answer early."""

    code: str
    message: str


class PromptTokensDetails(Open):
    cached_tokens: int | None = None


class CompletionTokensDetails(Open):
    reasoning_tokens: int | None = None


class TokenUsage(Open):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class Message(Open):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[dict[str, Any]]
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


PromptLogprobs = list[dict[str, dict[str, Any]] | None]
"""Of each token of the prompt by token ids; the first has none."""


class Choice(Open):
    index: int
    finish_reason: str | None
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    finish_details: FinishDetails | None = None


class ChatChoice(Choice, kw_only=True):
    message: Message


class TextChoice(Choice, kw_only=True):
    text: str
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class Whole(Open):
    id: str
    created: int
    model: str
    usage: TokenUsage
    system_fingerprint: str | None = None


class ChatCompletion(Whole, kw_only=True):
    object: Literal["chat.completion"]
    service_tier: Literal["default", "flex"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class Completion(Whole, kw_only=True):
    object: Literal["text_completion"]
    choices: list[TextChoice]
