"""The list of models."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Shape


class Pricing(Shape):
    """Prices as exact decimal numbers."""

    currency: str
    unit: Literal["1M tokens"]
    prompt: str
    cached_prompt: str
    completion: str


class Capabilities(Shape):
    tools: bool
    reasoning: bool
    structured_outputs: bool
    vision: bool


class Model(Shape):
    """A base model, or an adapter."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    pricing: Pricing
    max_model_len: int | None = None
    operations: list[str] | None = None
    capabilities: Capabilities | None = None


class Models(Shape):
    object: Literal["list"]
    data: list[Model]
