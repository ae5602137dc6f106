"""Sums of usage and costs."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Shape


class UsageResult(Shape):
    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    input_audio_tokens: int
    output_tokens: int
    output_audio_tokens: int
    num_model_requests: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: str | None


class Amount(Shape):
    value: float
    currency: str


class CostResult(Shape):
    object: Literal["organization.costs.result"]
    amount: Amount
    line_item: str | None
    project_id: str | None
    api_key_id: str | None


class Bucket(Shape):
    object: Literal["bucket"]
    start_time: int
    end_time: int


class UsageBucket(Bucket, kw_only=True):
    results: list[UsageResult]


class CostBucket(Bucket, kw_only=True):
    results: list[CostResult]


class Page(Shape):
    object: Literal["page"]
    has_more: bool
    next_page: str | None


class UsagePage(Page, kw_only=True):
    """Tokens and requests by time."""

    data: list[UsageBucket]


class CostPage(Page, kw_only=True):
    """Costs by time."""

    data: list[CostBucket]
