"""Problem details (RFC 9457): the format of all errors of the management API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from inference.errors import short

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 20
"""Field errors in one answer, so that it stays short whatever was sent."""


def problem(
    status: int, detail: str, code: str, errors: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """The body of an error; texts that repeat long input are shortened."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": short(detail),
        "code": code,
    }
    shown = [{name: short(text) for name, text in error.items()} for error in errors[:MAX_ERRORS]]
    return body | ({"errors": shown} if shown else {})
