"""The ranges of numbers in requests: those of vLLM's `SamplingParams`, and OpenAI's where they are
narrower. Gateways check them, and the OpenAPI document states them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Temperature = Annotated[float, Meta(ge=0, le=2)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Factor = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
TopK = Annotated[int, Meta(ge=-1)]
"""-1 and 0: all tokens."""
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
"""Log-probabilities of other tokens with each; at most as many as vLLM gives by default."""
