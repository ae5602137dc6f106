"""The tree of all errors. A class defines its code, HTTP status and whether a retry can help.

`gateway.exchanges.exchange` answers with these, in the shapes of `operations.error_shapes`;
`wire.Fault` carries them across the engine link. A class's docstring is its default message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self

MAX_MESSAGE = 400
MAX_PARAM = 100
"""Most characters shown of an error, because much of it may be what a client sent."""
SHOWN_END = 100
"""Characters kept from the end of a longer message: it often says what is allowed."""
MAX_RETRY_AFTER_S = 60
"""OpenAI's SDKs ignore a `retry-after` above this and retry at once."""


class InferenceError(Exception):
    """The server had an unexpected error."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retryable: ClassVar[bool] = False
    may_retry_elsewhere: ClassVar[bool] = False
    """The engine is at fault, so another engine may continue the request."""
    limit_kind: str = ""
    """If a limit refused the request: the kind of the limit, such as `requests_per_minute`."""
    limit_scope: str = ""
    """If a limit refused the request: its scope, `tenant`, `key` or `adapter`."""

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """`message` defaults to the class's docstring; `retry_after_s` is in seconds from now.

        The message and the parameter are shortened, and made encodable as UTF-8.
        """
        self.message = short(message or (type(self).__doc__ or "").strip())
        self.param = None if param is None else _text(param[:MAX_PARAM])
        self.retry_after_s = retry_after_s
        super().__init__(self.message)

    @property
    def retry_header(self) -> str | None:
        """The value of `retry-after`: whole seconds, rounded up, from 1 to MAX_RETRY_AFTER_S; None
        if there is no time to retry at."""
        if self.retry_after_s is None:
            return None
        return str(min(MAX_RETRY_AFTER_S, max(1, math.ceil(self.retry_after_s))))


def short(message: str) -> str:
    """The message, or its beginning and end if it is longer than MAX_MESSAGE; valid UTF-8."""
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE - SHOWN_END - 5]} ... {message[-SHOWN_END:]}"
    return _text(message)


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class RequestError(InferenceError):
    """The request is at fault; a retry without changes fails again."""

    code = "request_error"
    http_status = 400
    type = "invalid_request_error"


class InvalidRequest(RequestError):
    """The request is not valid."""

    code = "invalid_request"


class ContextLengthExceeded(RequestError):
    """The prompt is longer than the model's context window."""

    code = "context_length_exceeded"
    tokens: int = 0
    """Of the prompt, at least; 0 if not known."""
    limit: int = 0
    """The model's context window in tokens; 0 if not known."""

    @classmethod
    def of(cls, message: str, tokens: int, limit: int) -> Self:
        """With the prompt's length and the limit, from which an API may make its own message."""
        error = cls(message)
        error.tokens, error.limit = tokens, limit
        return error


class InvalidApiKey(RequestError):
    """Incorrect API key provided."""

    code = "invalid_api_key"
    http_status = 401
    tenant_id: int = 0
    key_id: int = 0
    """The key with the same prefix as the one sent, and its tenant; 0 if there is none."""


class ApiKeyRevoked(InvalidApiKey):
    """The API key was revoked, or its tenant suspended, while the request ran."""

    code = "api_key_revoked"


class PermissionDenied(RequestError):
    """This API key lacks the scope that the request needs."""

    code = "insufficient_permissions"
    http_status = 403


class UnknownModel(RequestError):
    """The model does not exist, or this API key may not use it."""

    code = "model_not_found"
    http_status = 404


class UnknownResponse(RequestError):
    """The response does not exist or is no longer stored. Send its items as `input`."""

    code = "previous_response_not_found"
    http_status = 400


class ResponseNotFound(RequestError):
    """The response does not exist or is no longer stored."""

    code = "response_not_found"
    http_status = 404


class ConversationNotFound(RequestError):
    """The conversation does not exist or is no longer stored."""

    code = "conversation_not_found"
    http_status = 404


class NotFound(RequestError):
    """There is no resource at this URL."""

    code = "not_found"
    http_status = 404


class MethodNotAllowed(RequestError):
    """This URL does not support the HTTP method."""

    code = "method_not_allowed"
    http_status = 405

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        """`allowed` are the methods that it does take, if known."""
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.allowed = tuple(allowed)


class RequestTimeout(RequestError):
    """The request body did not arrive in time."""

    code = "request_timeout"
    http_status = 408


class PayloadTooLarge(RequestError):
    """The request body exceeds this server's limit."""

    code = "payload_too_large"
    http_status = 413


class UnsupportedMediaType(RequestError):
    """The request body has an encoding that this server does not support."""

    code = "unsupported_media_type"
    http_status = 415


class UriTooLong(RequestError):
    """The request's URL exceeds this server's limit."""

    code = "uri_too_long"
    http_status = 414


class HeadersTooLarge(RequestError):
    """The request's headers exceed this server's limit."""

    code = "headers_too_large"
    http_status = 431


class UnknownTransferCoding(RequestError):
    """The request body has a transfer coding that this server does not support."""

    code = "transfer_coding_not_supported"
    http_status = 501


class HttpVersionNotSupported(RequestError):
    """The request has an HTTP version that this server does not support: send HTTP/1.1."""

    code = "http_version_not_supported"
    http_status = 505


class ClientDisconnected(RequestError):
    """The client disconnected before the answer was complete."""

    code = "cancelled"
    http_status = 499


class IdempotencyKeyReused(RequestError):
    """The idempotency key was already used with a different request body."""

    code = "idempotency_key_reused"
    http_status = 409


class RequestQuarantined(RequestError):
    """Engines failed twice while running this exact request, so it is refused for an hour."""

    code = "request_quarantined"
    http_status = 422


class StorageFull(RequestError):
    """The tenant's file storage is full."""

    code = "storage_quota_exceeded"
    http_status = 403


class FileInUse(RequestError):
    """A batch or a fine-tuning job is using this file."""

    code = "file_in_use"
    http_status = 409


class EvalInUse(RequestError):
    """An alias of an adapter requires this eval."""

    code = "eval_in_use"
    http_status = 409


class UploadEnded(RequestError):
    """The upload is already complete, cancelled or expired."""

    code = "upload_ended"
    http_status = 409


class BatchEnded(RequestError):
    """The batch has already ended and cannot be cancelled."""

    code = "batch_ended"
    http_status = 409


class TuningNotPossible(RequestError):
    """The fine-tuning job's state does not allow this."""

    code = "tuning_not_possible"
    http_status = 409


class RateLimitExceeded(InferenceError):
    """A rate limit was reached."""

    code = "rate_limit_exceeded"
    http_status = 429
    type = "rate_limit_error"
    retryable = True


class InsufficientQuota(InferenceError):
    """A budget is exhausted."""

    code = "insufficient_quota"
    http_status = 429
    type = "insufficient_quota"


class Overloaded(InferenceError):
    """All queues for this model are full."""

    code = "server_is_overloaded"
    http_status = 503
    retryable = True


class NoEngine(Overloaded):
    """No engine that serves this model is connected."""

    code = "no_engine_available"


class Unavailable(Overloaded):
    """The database is unavailable, so the API key cannot be checked."""

    code = "service_unavailable"


class EngineLost(InferenceError):
    """The engine was lost while it generated this answer."""

    code = "engine_lost"
    http_status = 502
    retryable = True
    may_retry_elsewhere = True


class GenerationTimeout(InferenceError):
    """The request exceeded its time limit."""

    code = "generation_timeout"
    http_status = 504
    retryable = True


class EngineFailed(InferenceError):
    """The engine failed while it generated this answer."""

    code = "engine_failed"
    retryable = True
    may_retry_elsewhere = True


class AdapterLoadFailed(InferenceError):
    """The adapter could not be loaded on the engine."""

    code = "adapter_load_failed"
    http_status = 503
    retryable = True


class AdapterUnavailable(AdapterLoadFailed):
    """The adapter's files could not be transferred to the engine. The adapter is not at fault."""

    code = "adapter_unavailable"


class ProtocolViolation(InferenceError):
    """The peer violated the protocol of the engine link."""

    code = "protocol_violation"


class EngineIdInUse(InferenceError):
    """Another engine with this id is connected."""

    code = "engine_id_in_use"


class EngineRefused(InferenceError):
    """The engine's credential does not allow it to serve this base model."""

    code = "engine_refused"


class LinkMisuse(InferenceError):
    """This end of the engine link attempted something that the protocol forbids."""

    code = "link_misuse"


def _family(root: type[InferenceError]) -> dict[str, type[InferenceError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found = _family(child) | found
    return found


BY_CODE: dict[str, type[InferenceError]] = _family(InferenceError)
"""The error classes by code, so that an error that crossed the wire is raised as its own class."""
