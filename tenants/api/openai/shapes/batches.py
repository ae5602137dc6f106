"""Batches."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Listed, Shape
from tenants.api.openai.shapes.files import OutputExpiry


class BatchRequest(Shape):
    """A file of requests to one endpoint."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None


class BatchError(Shape):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(Shape):
    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(Shape):
    total: int
    completed: int
    failed: int


class InputDetails(Shape):
    cached_tokens: int


class OutputDetails(Shape):
    reasoning_tokens: int


class BatchUsage(Shape):
    """Usage of the answered lines."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Batch(Shape):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
        "cancelled",
    ]  # fmt: skip
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class Batches(Listed, kw_only=True):
    data: list[Batch]
