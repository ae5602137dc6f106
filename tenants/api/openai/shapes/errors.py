"""Errors."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Shape


class AnthropicError(Shape):
    type: str
    message: str
    code: str
    param: str | None


class AnthropicErrorAnswer(Shape):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicError
    request_id: str | None


class Error(Shape):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Shape):
    """An error in OpenAI's format."""

    error: Error
