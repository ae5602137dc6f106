"""Turns a client's body into vLLM's own request object, and vLLM's errors into ours."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.serve.engine.protocol import ErrorInfo
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import GenerationError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from inference.agent.engines.engine import Work
from inference.agent.engines.vllm.grammars import foresee
from inference.agent.engines.vllm.patterns import check_patterns
from inference.agent.engines.vllm.runners.runner import Runner
from inference.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InferenceError,
    InvalidRequest,
    Overloaded,
)
from inference.operations.registry import OPERATIONS

log = logging.getLogger(__name__)

CONTEXT_PARAMETERS = {"input_tokens", "input_text"}
"""What vLLM names as the wrong parameter when a prompt is longer than the context."""


FIELDS = frozenset[str]().union(*(operation.accepted for operation in OPERATIONS))
"""What an error may name as the wrong parameter."""


HELD_BY = ("output_config", "response_format", "structured_outputs", "tools")
"""Fields that may constrain an answer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a model can do: how many choices at once, and whether it has parsers for tool calls and
    for reasoning."""

    choices: int
    tools: bool
    reasons: bool


def is_held(fields: dict[str, Any]) -> bool:
    """Whether the answer is constrained by something that vLLM compiles to a grammar."""
    return any(fields.get(name) for name in HELD_BY)


def request_of(
    work: Work, fields: dict[str, Any], runner: Runner, endpoint: Any, bounds: Bounds
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


def _read(work: Work, fields: dict[str, Any], runner: Runner, endpoint: Any) -> Any:
    check_patterns(fields)
    fields |= {"request_id": work.key, "priority": work.priority, "cache_salt": work.salt or None}
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


def as_error(error: BaseException) -> InferenceError:
    """An exception from inside vLLM as one of ours; what isn't the client's fault is logged."""
    if isinstance(error, InferenceError):
        return error
    if isinstance(error, EngineDeadError):
        return EngineFailed("The engine stopped.")
    if isinstance(error, EngineGenerateError) and error.__cause__ is not None:
        return as_error(error.__cause__)
    if isinstance(error, Exception) and not isinstance(error, GenerationError):
        info = create_error_response(error).error
        if isinstance(error, VLLMValidationError):
            info.message = str(error.args[0])
        found = of_info(info)
        if not isinstance(found, EngineFailed):
            return found
    log.error("the engine failed on a request", exc_info=error)
    return EngineFailed()


def of_info(info: ErrorInfo) -> InferenceError:
    """vLLM's error body as one of ours."""
    if info.code == HTTPStatus.SERVICE_UNAVAILABLE:
        return Overloaded(retry_after_s=1.0)
    if info.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return EngineFailed()
    if info.param in CONTEXT_PARAMETERS:
        return ContextLengthExceeded(info.message, param=None)
    return InvalidRequest(info.message, param=info.param or _named_field(info.message))


def _named_field(message: str) -> str | None:
    """The field that vLLM's message begins with, such as "n must be at least 1"; else None."""
    first = message.partition(" ")[0]
    return first if first in FIELDS else None


def invalid_field(error: ValidationError) -> InvalidRequest:
    """One complaint as one sentence: `` `temperature`: input should be a valid number. ``

    For a field that may have several types, it is about the type that the field has.
    """
    found = error.errors(include_url=False, include_context=False)
    first = min(found, key=lambda complaint: complaint["type"].endswith("_type"))
    param = _path(first["loc"])
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    if not param:
        return InvalidRequest(f"{message}.")
    return InvalidRequest(f"`{param}`: {message[0].lower()}{message[1:]}.", param=param)


def _path(loc: tuple[Any, ...]) -> str:
    """`messages[0].content`; the names of pydantic's union members are left out."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step.islower() and step not in ("str", "int", "float"):
            path += f".{step}" if path else step
        else:
            break
    return path
