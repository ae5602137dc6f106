"""What the span of a request has."""

from __future__ import annotations

from typing import Any

from inference.gateway.records.log_line import Asked, LogLine
from inference.link.accounts import Usage
from inference.operations.operation import Operation


def span_name(asked: Asked) -> str:
    """The operation's name, with the model's if that was resolved."""
    name = "" if asked.operation is None else traced_as(asked.operation)
    return name if asked.request is None else f"{name} {asked.request.target.model}"


def traced_as(operation: Operation) -> str:
    """The name of spans of requests for this operation."""
    return operation.span_name or operation.name


def attributes_of(asked: Asked, line: LogLine) -> dict[str, Any]:
    """OpenTelemetry's attributes for generative AI, and Lorikeet's own."""
    call, usage = asked.call, None
    if asked.request is not None and asked.request.done is not None:
        usage = asked.request.done.usage
    found = {
        "gen_ai.operation.name": asked.operation and traced_as(asked.operation),
        "gen_ai.provider.name": "lorikeet",
        "gen_ai.request.model": line.model,
        "gen_ai.request.choice.count": call and call.workload.choices,
        "gen_ai.request.max_tokens": call and call.workload.max_tokens,
        "gen_ai.response.id": call and call.operation.answer_id(line.request_id),
        "gen_ai.response.model": asked.request and asked.request.target.model,
        "gen_ai.response.finish_reasons": line.finish_reason and [line.finish_reason],
        **_usage_attributes(usage),
        "http.request.method": line.method,
        "http.response.status_code": line.status,
        "url.path": line.path,
        "lorikeet.request_id": line.request_id,
        "lorikeet.surface": line.surface,
        "lorikeet.tenant": line.tenant,
        "lorikeet.key": line.key,
        "lorikeet.base_model": line.base_model,
        "lorikeet.adapter_version": line.version,
        "lorikeet.engine": line.engine,
        "lorikeet.attempts": line.attempts,
        "lorikeet.outcome": line.outcome,
    }
    return {name: value for name, value in found.items() if value is not None}


def _usage_attributes(usage: Usage | None) -> dict[str, int]:
    if usage is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
