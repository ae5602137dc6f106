"""Turns a client's body into vLLM's own request object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from vllm.exceptions import VLLMValidationError

from inference.agent.engines.engine import EngineWork
from inference.agent.engines.vllm.errors import as_error, invalid_field
from inference.agent.engines.vllm.grammars import foresee
from inference.agent.engines.vllm.patterns import check_patterns
from inference.agent.engines.vllm.runners.runner import Runner
from inference.errors import InvalidRequest

HELD_BY = ("output_config", "response_format", "structured_outputs", "tools")
"""Fields that may constrain an answer."""


@dataclass(frozen=True, slots=True)
class EngineBounds:
    """What a model can do: how many choices at once, and whether it has parsers for tool calls and
    for reasoning."""

    choices: int
    tools: bool
    reasons: bool


def is_held(fields: dict[str, Any]) -> bool:
    """Whether the answer is constrained by something that vLLM compiles to a grammar."""
    return any(fields.get(name) for name in HELD_BY)


def request_of(
    work: EngineWork, fields: dict[str, Any], runner: Runner, endpoint: Any, bounds: EngineBounds
) -> Any:
    """Read the work's fields with vLLM's request model; what identifies the client comes from
    `work` alone.

    Raises:
        InvalidRequest: a field has a wrong type or value.
    """
    request = _read(work, fields, runner, endpoint)
    if (request.n or 1) > bounds.choices:
        raise InvalidRequest(f"`n` is {request.n}: it must be at most {bounds.choices}.", param="n")
    if runner.uses_tools(request):
        if not bounds.tools:
            raise InvalidRequest("`tools` is not supported by this model.", param="tools")
        foresee(request)
    if fields.get("thinking", {}).get("type") == "enabled" and not bounds.reasons:
        raise InvalidRequest("`thinking` is not supported by this model.", param="thinking")
    return request


def _read(work: EngineWork, fields: dict[str, Any], runner: Runner, endpoint: Any) -> Any:
    check_patterns(fields)
    fields |= {"request_id": work.key, "priority": work.priority, "cache_salt": work.cache_salt}
    if fields.get("stream"):
        # The full path's last chunk then has the reasoning tokens; it is not passed on.
        fields["stream_options"] = {"include_usage": True}
    try:
        return runner.read(endpoint, fields)
    except ValidationError as error:
        raise invalid_field(error) from None
    except VLLMValidationError as error:
        raise as_error(error) from None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        # vLLM's validators look into raw JSON and fail on shapes that they don't expect.
        raise InvalidRequest(f"The request is malformed: {error!r}.") from None
