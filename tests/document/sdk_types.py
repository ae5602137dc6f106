"""Whether answers and events of streams are what the SDKs' types say, strictly: no field that the
type has not, and null only where it means something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

OPENAI_NULLS = {"content", "finish_reason", "logprobs", "refusal", "usage"}
"""What OpenAI's own answers have null."""
ANTHROPIC_NULLS = {
    "cache_creation",
    "citations",
    "container",
    "inference_geo",
    "server_tool_use",
    "stop_details",
    "stop_reason",
    "stop_sequence",
}
ECHOED_NULLS = {"token_logprobs", "top_logprobs"}
"""Lists whose first value is null where a prompt is echoed: of its first token, as with OpenAI."""
OURS = {"finish_details", "reasoning"}
"""Fields of ours: why a limit ended an answer, and a model's thoughts, as vLLM tells them."""
OF_MODELS = {"root", "pricing", "max_model_len", "operations", "capabilities"}


@cache
def _types() -> dict[str, tuple[Any, Any]]:
    """Of each operation its answer, and the events of its stream. Imported late: seconds."""
    import anthropic.types
    import openai.types
    import openai.types.chat

    text, message = openai.types.Completion, anthropic.types.Message
    return {
        "chat": (openai.types.chat.ChatCompletion, openai.types.chat.ChatCompletionChunk),
        "completion": (text, text),
        "models_retrieve": (openai.types.Model, None),
        "messages": (message, anthropic.types.RawMessageStreamEvent),
        "count_tokens": (anthropic.types.MessageTokensCount, None),
    }


@cache
def _adapter(operation: str, *, event: bool) -> TypeAdapter[Any] | None:
    """Made once: the SDKs' types put off what they need to validate, for 5 ms each time."""
    kind = _types().get(operation, (None, None))[event]
    return None if kind is None else TypeAdapter(kind)


def faults(operation: str, body: bytes, *, event: bool = False) -> list[str]:
    """What of a body, or of the data of an event, is not as the SDK's type says; of an operation
    that no SDK has nothing."""
    adapter = _adapter(operation, event=event)
    if adapter is None:
        return []
    value = json.loads(body)
    nulls = ANTHROPIC_NULLS if operation == "messages" else OPENAI_NULLS
    found = [f"{path} is null" for path in _nulls(value, nulls)]
    if operation == "completion":
        value = _as_typed(value)
    try:
        read = adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return [*found, *(f"{one['loc']}: {one['msg']}" for one in error.errors())]
    ours = OURS | OF_MODELS if operation == "models_retrieve" else OURS
    return [*found, *(f"{path} is in no type" for path in _extras(read, ours))]


def _as_typed(completion: dict[str, Any]) -> dict[str, Any]:
    """What the SDK's type of a completion leaves out: a chunk that does not end, and the first
    token of an echo."""
    for choice in completion["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for name in ECHOED_NULLS & (logprobs := choice.get("logprobs") or {}).keys():
            if logprobs[name] and logprobs[name][0] is None:
                logprobs[name] = logprobs[name][1:]
    return completion


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
