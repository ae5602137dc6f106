"""Batches of messages, in the notation of Anthropic's API."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Open, Shape
from tenants.api.openai.shapes.messages import MessagesRequest


class BatchedMessage(Open):
    custom_id: str
    params: MessagesRequest


class MessageBatchRequest(Open):
    """Requests that are answered within a day."""

    requests: list[BatchedMessage]


class MessageCounts(Shape):
    """Requests by their result; all are `processing` until the batch has ended."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(Shape):
    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    created_at: str
    expires_at: str
    cancel_initiated_at: str | None
    ended_at: str | None
    archived_at: str | None
    results_url: str | None


class MessageBatches(Shape):
    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(Shape):
    id: str
    type: Literal["message_batch_deleted"]
