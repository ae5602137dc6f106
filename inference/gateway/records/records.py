"""When and where a request is recorded: in the log, the trace, the metrics, the outcomes."""

from __future__ import annotations

import time
from functools import partial

import msgspec
import structlog

from inference.errors import InferenceError
from inference.gateway.measuring.measures import Measures
from inference.gateway.measuring.outcomes import Outcomes
from inference.gateway.records.log_line import Asked, LogLine, line_of
from inference.gateway.records.outcome import (
    figures_of,
    group_of,
    observation_of,
    refusal_of,
    shown_code,
)
from inference.gateway.records.span import attributes_of, span_name, traced_as
from inference.operations.operation import Operation
from inference.operations.structure import StructureOutcome
from inference.tracing import Span, Tracer

log = structlog.get_logger(__name__)


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
        return self._tracer.begin(traced_as(operation), traceparent, began)

    def ended(self, asked: Asked, error: InferenceError | None) -> None:
        """The client has its answer or `error`, or is gone: record the request once settled."""
        tell = partial(self._tell, asked, error, time.monotonic() - asked.began)
        if asked.stream is None:
            tell()
        else:
            asked.stream.on_settled(tell)

    def _tell(self, asked: Asked, error: InferenceError | None, elapsed_s: float) -> None:
        line = line_of(asked, error, elapsed_s)
        if asked.operation is not None:
            self._count(line, asked, error)
        self._note_checked(line, asked, error, elapsed_s)
        if asked.span is not None:
            asked.span.end(
                name=span_name(asked), attributes=attributes_of(asked, line), error=line.error or ""
            )
        log.info("request", **msgspec.to_builtins(line))

    def _count(self, line: LogLine, asked: Asked, error: InferenceError | None) -> None:
        code = shown_code(line, asked, error)
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

    def _note_checked(
        self, line: LogLine, asked: Asked, error: InferenceError | None, elapsed_s: float
    ) -> None:
        """Note the request, once its answer's structure is checked if it is to be."""
        note = partial(self._note, line, asked, error, elapsed_s, time.time())
        if asked.stream is None or asked.stream.structure is None:
            return note(None)
        asked.stream.structure.on_outcome(note)

    def _note(
        self,
        line: LogLine,
        asked: Asked,
        error: InferenceError | None,
        elapsed_s: float,
        now: float,
        structure: StructureOutcome | None,
    ) -> None:
        """Add the request, which ended at `now`, to the outcomes that its tenant sees; of those
        that generate nothing, only the refused ones."""
        if structure is not None:
            self._measures.checked(line.base_model or "", structure)
        request, refusal = asked.request, None
        handed_over = request is not None and request.handed_over
        if handed_over or not self._outcomes.counts(line.tenant or ""):
            return
        if (observation := observation_of(line, asked, structure, now)) is not None:
            self._outcomes.observe(observation)
        if (group := group_of(line, asked, error, now)) is None:
            return
        if error is not None:
            began = now - elapsed_s if request is None else request.started_at
            refusal = refusal_of(line, group, error, started_at=began, total_s=elapsed_s)
        if asked.operation is not None:
            self._outcomes.note(group, figures_of(line, asked, structure), refusal)
        elif refusal is not None:
            self._outcomes.keep(group, refusal)
