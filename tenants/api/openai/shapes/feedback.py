"""Feedback on an answer."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Shape


class FeedbackRequest(Shape):
    """A score of the answer to the request with this id: a number, true or false, or a category."""

    request_id: str
    score: float | bool | str
    name: str = "feedback"
    comment: str = ""


class Feedback(Shape):
    object: Literal["feedback"]
    request_id: str
    name: str
    score: float | bool | str
    comment: str
    created_at: int
