"""What all types have in common, and types that several APIs use."""

from __future__ import annotations

from typing import Literal

import msgspec


class Shape(msgspec.Struct):
    """A type with exactly these fields."""


class Open(Shape):
    """A type that may have other fields: vLLM adds some to answers; requests' are ignored."""


class PromptUsage(Shape):
    """Usage of an operation that generates nothing."""

    prompt_tokens: int
    total_tokens: int


class Listed(Shape):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool
