"""Turns vLLM's errors into ours."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.serve.engine.protocol import ErrorInfo
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import GenerationError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

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

_LIMIT = re.compile(r"maximum context length is (\d+) tokens")
_TOKENS = re.compile(r"contains (?:at least )?(\d+) input tokens")

FIELDS = frozenset[str]().union(*(operation.accepted for operation in OPERATIONS))
"""What an error may name as the wrong parameter."""


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
        return _too_long(info.message)
    return InvalidRequest(info.message, param=info.param or _named_field(info.message))


def _too_long(message: str) -> ContextLengthExceeded:
    """With the numbers of vLLM's message. A very long text is counted in characters, and is known
    to have more tokens than the limit."""
    limit = _LIMIT.search(message)
    if limit is None:
        return ContextLengthExceeded(message)
    tokens = _TOKENS.search(message)
    most = int(limit[1])
    return ContextLengthExceeded.of(message, int(tokens[1]) if tokens else most + 1, most)


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
