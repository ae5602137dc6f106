"""What is recorded of each request once it is over: a log line, its span, counts, its outcome.

The line is the event `request`. It has names, counts and times, never content: no prompt, no
answer, and no error message, because that may quote them; only the request's own tenant sees the
message. A request whose client disconnected is recorded when its engine has sent `done`, so that
the figures match the bill.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec
import structlog

from inference.errors import InferenceError, InvalidApiKey
from inference.gateway.measuring.measures import COMPLETED, Measures, code_of, outcome_of
from inference.gateway.measuring.outcomes import (
    MINUTE_S,
    EndedFigures,
    OutcomeGroup,
    Outcomes,
    Refusal,
)
from inference.gateway.requests.request import Request
from inference.gateway.requests.stream import Stream
from inference.interfaces.directory import Grant
from inference.link.accounts import Usage
from inference.link.wire import Done
from inference.operations.operation import Call, Operation
from inference.tracing import Span, Tracer

log = structlog.get_logger(__name__)

SHOWN_MODEL = SHOWN_REASON = 128
"""Characters logged of the client's model name, and of the engine's finish reason."""
SHOWN_DIGEST = 12
"""Characters of an adapter version's digest: enough to request it as `adapter@<digest>`."""
SHOWN_PATH = 256


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
    """`api`, `playground`, `batch` or `background`."""
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


class Records:
    """Records the requests of one gateway process."""

    def __init__(
        self, measures: Measures, outcomes: Outcomes, tracer: Tracer | None = None
    ) -> None:
        self._measures, self._outcomes, self._tracer = measures, outcomes, tracer

    def begin(self, operation: Operation, began: float, traceparent: str = "") -> Span | None:
        """Begin the span of a request for this operation, if it is traced; `traceparent` is the
        client's header."""
        if self._tracer is None:
            return None
        return self._tracer.begin(_traced(operation), traceparent, began)

    def ended(self, asked: Asked, error: InferenceError | None) -> None:
        """The client has its answer or `error`, or is gone: record the request once settled."""
        tell = partial(self._tell, asked, error, time.monotonic() - asked.began)
        if asked.stream is None:
            tell()
        else:
            asked.stream.on_settled(tell)

    def _tell(self, asked: Asked, error: InferenceError | None, elapsed_s: float) -> None:
        line = _line(asked, error, elapsed_s)
        if asked.operation is not None:
            self._count(line, asked, error)
        self._note(line, asked, error, elapsed_s)
        if asked.span is not None:
            asked.span.end(
                name=_span_name(asked), attributes=_attributes(asked, line), error=line.error or ""
            )
        log.info("request", **msgspec.to_builtins(line))

    def _count(self, line: LogLine, asked: Asked, error: InferenceError | None) -> None:
        code = _code(line, asked, error)
        self._measures.counted(line.base_model or "", line.engine or "", line.outcome, code)
        if error is not None:
            self._measures.refused(error)
        if line.tenant is not None:
            self._measures.busiest.note(
                line.tenant,
                line.outcome,
                line.prompt_tokens or 0,
                line.output_tokens or 0,
                time.monotonic(),
            )

    def _note(
        self, line: LogLine, asked: Asked, error: InferenceError | None, elapsed_s: float
    ) -> None:
        """Add the request to the outcomes that its tenant sees; of those that generate nothing,
        only the refused ones."""
        now, request, who = time.time(), asked.request, _whose(asked, error)
        handed_over = request is not None and request.handed_over
        if who is None or handed_over or not self._outcomes.counts(line.tenant or ""):
            return
        target = None if request is None else request.target
        group = OutcomeGroup(
            int(now) // MINUTE_S * MINUTE_S,
            *who,
            (target and target.version_id) or 0,
            target.adapter.own_name if target is not None and target.adapter is not None else "",
            line.base_model or "",
            line.outcome,
            _code(line, asked, error),
            error.limit_kind if error is not None else "",
            error.limit_scope if error is not None else "",
        )
        refusal = None
        if error is not None:
            refusal = Refusal(
                id=line.request_id,
                started_at=now - elapsed_s if request is None else request.started_at,
                model=line.model or "",
                surface=line.surface,
                status=error.http_status,
                message=error.message,
                total_s=elapsed_s,
                tenant_id=group.tenant_id,
                key_id=group.key_id,
                version_id=group.version_id,
                adapter=group.adapter,
                base_model=group.base_model,
                outcome=group.outcome,
                code=group.code,
                limit_kind=group.limit_kind,
                limit_scope=group.limit_scope,
                trace_id=line.trace_id or "",
            )
        if asked.operation is not None:
            self._outcomes.note(group, _ended(line, request), refusal)
        elif refusal is not None:
            self._outcomes.keep(group, refusal)


def _code(line: LogLine, asked: Asked, error: InferenceError | None) -> str:
    replayed = asked.request is None and error is None
    return "replayed" if replayed else code_of(error, line.finish_reason)


def _whose(asked: Asked, error: InferenceError | None) -> tuple[int, int] | None:
    """The ids of the request's tenant and API key; None if they are not known."""
    if asked.grant is not None:
        return asked.grant.tenant_id, asked.grant.key_id
    if isinstance(error, InvalidApiKey) and error.key_id:
        return error.tenant_id, error.key_id
    return None


def _ended(line: LogLine, request: Request | None) -> EndedFigures:
    if request is None or request.done is None:
        return EndedFigures()
    usage = request.done.usage
    return EndedFigures(
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        request.target.price.cost(usage),
        request.ttft_s,
        request.total_s if line.outcome == COMPLETED else None,
    )


def _line(asked: Asked, error: InferenceError | None, elapsed_s: float) -> LogLine:
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


def _span_name(asked: Asked) -> str:
    """The operation's name, with the model's if that was resolved."""
    name = "" if asked.operation is None else _traced(asked.operation)
    return name if asked.request is None else f"{name} {asked.request.target.model}"


def _traced(operation: Operation) -> str:
    return operation.span_name or operation.name


def _attributes(asked: Asked, line: LogLine) -> dict[str, Any]:
    """OpenTelemetry's attributes for generative AI, and Lorikeet's own."""
    call, usage = asked.call, None
    if asked.request is not None and asked.request.done is not None:
        usage = asked.request.done.usage
    found = {
        "gen_ai.operation.name": asked.operation and _traced(asked.operation),
        "gen_ai.provider.name": "lorikeet",
        "gen_ai.request.model": line.model,
        "gen_ai.request.choice.count": call and call.workload.choices,
        "gen_ai.request.max_tokens": call and call.workload.max_tokens,
        "gen_ai.response.id": call and call.operation.answer_id(line.request_id),
        "gen_ai.response.model": asked.request and asked.request.target.model,
        "gen_ai.response.finish_reasons": line.finish_reason and [line.finish_reason],
        **_usage_attributes(usage),
        "http.request.method": line.method,
        "http.response.status_code": line.status,
        "url.path": line.path,
        "lorikeet.request_id": line.request_id,
        "lorikeet.surface": line.surface,
        "lorikeet.tenant": line.tenant,
        "lorikeet.key": line.key,
        "lorikeet.base_model": line.base_model,
        "lorikeet.adapter_version": line.version,
        "lorikeet.engine": line.engine,
        "lorikeet.attempts": line.attempts,
        "lorikeet.outcome": line.outcome,
    }
    return {name: value for name, value in found.items() if value is not None}


def _usage_attributes(usage: Usage | None) -> dict[str, int]:
    if usage is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
