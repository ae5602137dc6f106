"""How errors are written for clients: in the shape of OpenAI's API, or of Anthropic's.

The two differ in the body and in how an event of a stream is named. The path of the request decides
which one a client gets, even if it is refused before its body is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from inference.errors import InferenceError

_json = msgspec.json.Encoder().encode


class ErrorShape(ABC):
    """Pure: an error in, bytes out. `request_id` is as in the header `x-request-id`."""

    id_header: bytes | None = None
    """The header, besides `x-request-id`, in which clients of that API expect the request's id."""

    @abstractmethod
    def body(self, error: InferenceError, request_id: str = "") -> bytes:
        """The body of an answer."""

    @abstractmethod
    def event(self, error: InferenceError, request_id: str = "") -> bytes:
        """An event in a stream. Nothing follows it, so a failed stream never looks complete."""


class _OpenAI(ErrorShape):
    def body(self, error: InferenceError, request_id: str = "") -> bytes:
        return _json(
            {
                "error": {
                    "message": error.message,
                    "type": error.type,
                    "param": error.param,
                    "code": error.code,
                }
            }
        )

    def event(self, error: InferenceError, request_id: str = "") -> bytes:
        return b"data: " + self.body(error) + b"\n\n"


ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status; any other is `invalid_request_error` below 500, else `api_error`."""


class _Anthropic(ErrorShape):
    id_header = b"request-id"

    def body(self, error: InferenceError, request_id: str = "") -> bytes:
        other = "invalid_request_error" if error.http_status < 500 else "api_error"
        type_ = ANTHROPIC_TYPES.get(error.http_status, other)
        if error.code == "insufficient_quota":
            type_ = "billing_error"
        # `code` and `param` are ours: with them, programs of both APIs can tell errors apart.
        fields = {
            "type": type_,
            "message": error.message,
            "code": error.code,
            "param": error.param,
        }
        return _json({"type": "error", "error": fields, "request_id": request_id or None})

    def event(self, error: InferenceError, request_id: str = "") -> bytes:
        return b"event: error\ndata: " + self.body(error, request_id) + b"\n\n"


OPENAI, ANTHROPIC = _OpenAI(), _Anthropic()
