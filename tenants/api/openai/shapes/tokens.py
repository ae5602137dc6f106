"""Tokenizing and detokenizing."""

from __future__ import annotations

from typing import Any

from tenants.api.openai.shapes.base import Open, Shape
from tenants.api.openai.shapes.generation import GivenMessage


class TokenizeRequest(Open):
    """A text or the messages of a chat."""

    model: str
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, bool] | None = None
    continue_final_message: bool | None = None
    messages: list[GivenMessage] | None = None
    prompt: str | None = None
    return_token_strs: bool | None = None
    tools: list[dict[str, Any]] | None = None


class Tokens(Shape):
    """The tokens that the model reads."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Open):
    model: str
    tokens: list[int]


class DetokenizedText(Shape):
    prompt: str
