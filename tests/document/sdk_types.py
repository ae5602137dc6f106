"""Strict checks of answers and stream events against the SDKs' types: no field that the type lacks,
and null only where it has a meaning."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

OPENAI_NULLS = {"content", "finish_reason", "logprobs", "refusal", "usage"}
"""Fields that are null in OpenAI's own answers."""
ANTHROPIC_NULLS = {
    "cache_creation",
    "container",
    "inference_geo",
    "server_tool_use",
    "stop_details",
    "stop_reason",
    "stop_sequence",
}
RESPONSES_NULLS = {
    "completed_at",
    "description",
    "effort",
    "error",
    "incomplete_details",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "parameters",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "strict",
    "summary",
    "usage",
}
"""Fields that the Open Responses specification requires, even if null."""
NULLS = {
    "messages": ANTHROPIC_NULLS,
    "responses": RESPONSES_NULLS,
    "responses_retrieve": RESPONSES_NULLS,
}
ECHOED_NULLS = {"token_logprobs", "top_logprobs"}
"""Lists whose first value is null in an echoed prompt: its first token's, as with OpenAI."""
OURS = {"finish_details", "reasoning"}
"""Lorikeet's own fields: why a limit ended an answer, and a model's reasoning, as vLLM names it."""
OF_RESPONSES = {"bytes", "frequency_penalty", "presence_penalty", "store"}
"""Fields of the Open Responses specification that the SDK's types lack."""
OF_MODELS = {"root", "pricing", "max_model_len", "operations", "capabilities"}
OF_VLLM = {"prompt_logprobs", "prompt_token_ids", "token_ids"}
EXTRAS = {
    "chat": OF_VLLM,
    "completion": OF_VLLM,
    "responses": OF_RESPONSES,
    "responses_retrieve": OF_RESPONSES,
    "models_retrieve": OF_MODELS,
}
TYPES = {
    "chat": ("openai.types.chat", "ChatCompletion", "ChatCompletionChunk"),
    "completion": ("openai.types", "Completion", "Completion"),
    "embeddings": ("openai.types", "CreateEmbeddingResponse", None),
    "models_retrieve": ("openai.types", "Model", None),
    "responses": ("openai.types.responses", "Response", "ResponseStreamEvent"),
    "responses_retrieve": ("openai.types.responses", "Response", None),
    "responses_input_items": ("openai.types.responses", "ResponseItemList", None),
    "messages": ("anthropic.types", "Message", "RawMessageStreamEvent"),
    "input_tokens": ("openai.types.responses", "InputTokenCountResponse", None),
    "count_tokens": ("anthropic.types", "MessageTokensCount", None),
}
"""The SDK's module for each operation, and the types of its answer and of its stream's events."""


@cache
def _adapter(operation: str, *, event: bool) -> TypeAdapter[Any] | None:
    """The validator of an operation's answers or events. It is built once, because the SDKs' types
    defer the building of their validators (5 ms each time), and only when needed, because each
    SDK's import takes a second."""
    if operation not in TYPES or (name := TYPES[operation][1 + event]) is None:
        return None
    return TypeAdapter(getattr(import_module(TYPES[operation][0]), name))


def faults(operation: str, body: bytes, *, event: bool = False) -> list[str]:
    """Deviations of a body, or of an event's data, from the SDK's type; none for an operation that
    no SDK has."""
    adapter = _adapter(operation, event=event)
    if adapter is None:
        return []
    value = json.loads(body)
    nulls = NULLS.get(operation, OPENAI_NULLS)
    found = [f"{path} is null" for path in _nulls(value, nulls)]
    if operation == "completion":
        value = _as_typed(value)
    if operation == "embeddings":
        value = _as_read(value)
    try:
        read = adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return [*found, *(f"{one['loc']}: {one['msg']}" for one in error.errors())]
    ours = OURS | EXTRAS.get(operation, set())
    return [*found, *(f"{path} is in no type" for path in _extras(read, ours))]


def _as_typed(completion: dict[str, Any]) -> dict[str, Any]:
    """A completion without the nulls that the SDK's type leaves out: those of unfinished chunks,
    and of an echo's first token."""
    for choice in completion["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for name in ECHOED_NULLS & (logprobs := choice.get("logprobs") or {}).keys():
            if logprobs[name] and logprobs[name][0] is None:
                logprobs[name] = logprobs[name][1:]
    return completion


def _as_read(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with vectors decoded as the SDK does, which requests base64 by default."""
    for one in answer["data"]:
        if isinstance(embedding := one["embedding"], str):
            packed = base64.b64decode(embedding, validate=True)
            one["embedding"] = list(struct.unpack(f"<{len(packed) // 4}f", packed))
    return answer


def _nulls(value: Any, allowed: set[str], path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if inner is None and name not in allowed:
                yield f"{path}.{name}"
            yield from _nulls(inner, allowed, f"{path}.{name}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _nulls(inner, allowed, f"{path}[{i}]")


def _extras(value: Any, ours: set[str], path: str = "") -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in {*(value.model_extra or {})} - ours)
        for name in type(value).model_fields:
            yield from _extras(getattr(value, name), ours, f"{path}.{name}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _extras(inner, ours, f"{path}[{i}]")
