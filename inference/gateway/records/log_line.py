"""What the log has of each request."""

from __future__ import annotations

import msgspec

from inference.errors import InferenceError
from inference.gateway.measuring.measures import outcome_of
from inference.gateway.requests.request import Request
from inference.gateway.requests.stream import Stream
from inference.interfaces.directory import Grant
from inference.link.wire import Done
from inference.operations.operation import Call, Operation
from inference.tracing import Span

SHOWN_MODEL = SHOWN_REASON = 128
"""Characters logged of the client's model name, and of the engine's finish reason."""
SHOWN_DIGEST = 12
"""Characters of an adapter version's digest: enough to request it as `adapter@<digest>`."""
SHOWN_PATH = 256
SHADOW = "shadow"
"""The surface of copies of requests (`gateway.shadows`)."""


class LogLine(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The fields of a log line; unknown ones are left out. `docs/observe.md` explains each."""

    request_id: str
    surface: str
    method: str | None = None
    path: str | None = None
    status: int | None = None
    ms: float
    tenant: str | None = None
    key: str | None = None
    operation: str | None = None
    model: str | None = None
    route: str | None = None
    base_model: str | None = None
    version: str | None = None
    engine: str | None = None
    attempts: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    hold_ms: float | None = None
    queue_ms: float | None = None
    load_ms: float | None = None
    ttft_ms: float | None = None
    outcome: str
    finish_reason: str | None = None
    error: str | None = None
    trace_id: str | None = None


class Asked(msgspec.Struct, frozen=True):
    """What an edge knows about a request when it ends."""

    id: str
    surface: str
    """`api`, `playground`, `batch`, `background` or SHADOW."""
    began: float
    """Monotonic time in seconds."""
    method: str | None = None
    path: str | None = None
    status: int | None = None
    operation: Operation | None = None
    """None if it is not a request to generate."""
    grant: Grant | None = None
    call: Call | None = None
    """None if its body was not read, or was invalid."""
    stream: Stream | None = None
    """None if it was refused before that, or its answer was replayed."""
    span: Span | None = None

    @property
    def request(self) -> Request | None:
        return None if self.stream is None else self.stream.request


def line_of(asked: Asked, error: InferenceError | None, elapsed_s: float) -> LogLine:
    """The log line of a request that ended with this error after this time."""
    request = asked.request
    attempts = 0 if request is None else request.attempts
    reason = None if request is None or request.done is None else request.done.finish_reason
    line = LogLine(
        request_id=asked.id,
        surface=asked.surface,
        method=asked.method,
        path=asked.path and asked.path[:SHOWN_PATH],
        status=asked.status,
        ms=_ms(elapsed_s),
        operation=None if asked.operation is None else asked.operation.name,
        model=None if asked.call is None else asked.call.model[:SHOWN_MODEL],
        route=None if asked.call is None else asked.call.route or None,
        outcome=outcome_of(error, reason, begun=attempts > 0),
        error=None if error is None else error.code,
        trace_id=None if asked.span is None else asked.span.trace_id,
    )
    if asked.grant is not None:
        line.tenant, line.key = asked.grant.tenant, asked.grant.key or None
    if request is not None and request.done is not None:
        _add_request(line, request, request.done)
    return line


def _add_request(line: LogLine, request: Request, done: Done) -> None:
    target, usage = request.target, done.usage
    line.base_model, line.engine = target.base_model, request.engine or None
    line.attempts = request.attempts
    if target.adapter is not None:
        line.version = target.adapter.digest[:SHOWN_DIGEST]
    line.prompt_tokens, line.cached_tokens = usage.prompt_tokens, usage.cached_tokens
    line.output_tokens = usage.completion_tokens
    line.finish_reason = done.finish_reason and done.finish_reason[:SHOWN_REASON]
    line.hold_ms = _ms(request.held_s) if request.held_s else None
    if request.ttft_s is not None:
        line.ttft_ms = _ms(request.ttft_s)
    if not request.is_estimated:
        line.queue_ms, line.load_ms = _ms(usage.queue_s), _ms(usage.load_s)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
