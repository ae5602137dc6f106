"""OpenTelemetry traces of requests, exported by OTLP over HTTP; off unless configured.

OpenTelemetry's own settings apply: OTEL_EXPORTER_OTLP_ENDPOINT says where spans are sent, and
without it the library is not imported. Spans are made from times that are measured anyway, so
nothing happens per token. The library's thread sends them from a queue that drops what does not
fit: a slow or unreachable collector delays no request.

Spans never contain content, only names, counts and times.

Times are of the monotonic clock, in seconds; they are converted to wall-clock time with one offset
per trace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

from inference.process import environ
from inference.process.environ import BadSetting

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

Attributes = Mapping[str, str | int | float | bool | list[str]]

PROTOCOL = "http/protobuf"
CLOSE_S = 2.0
"""Time limit of sending the last spans at shutdown."""


def asked() -> bool:
    """Whether the environment enables traces.

    Raises:
        BadSetting: it asks for an exporter or protocol that is not supported.
    """
    endpoint = environ.text("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    endpoint = environ.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)
    exporter = environ.choice("OTEL_TRACES_EXPORTER", ["otlp", "none"], "otlp")
    if not endpoint or exporter == "none" or environ.boolean("OTEL_SDK_DISABLED", False):
        return False
    for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        environ.choice(name, [PROTOCOL], PROTOCOL)
    return True


def start(service: str, instance: str) -> Tracer | None:
    """The tracer of this process; None if traces are off. `service` is the service name unless
    OTEL_SERVICE_NAME is set; `instance` distinguishes processes. Starts a thread: call it after any
    fork.

    Raises:
        BadSetting: as `asked`, or the library rejects a setting.
    """
    if not asked():
        return None
    service = environ.text("OTEL_SERVICE_NAME", service)

    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    names = {"service.name": service, "service.instance.id": instance}
    try:
        provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise BadSetting(f"the settings of traces (OTEL_...) are not allowed: {error}") from None
    return Tracer(provider)


class Tracer:
    """Makes the spans of one process."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("lorikeet")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, traceparent: str, since: float) -> Span | None:
        """The span of a request with this W3C Trace Context header, which may be empty; None if the
        sampler drops it."""
        clock = _clock()
        context = self._propagator.extract({"traceparent": traceparent})
        span = self._begin(name, context, since, clock, server=True)
        return span if span.is_recording else None

    def note(
        self, traceparent: str, name: str, since: float, until: float, attributes: Attributes
    ) -> None:
        """Record a finished step within a span of another process."""
        context = self._propagator.extract({"traceparent": traceparent})
        self._begin(name, context, since, _clock()).end(until=until, attributes=attributes)

    def close(self) -> None:
        """Send the remaining spans. Blocks for at most CLOSE_S; what is unsent then is lost."""
        closing = Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _begin(
        self, name: str, context: Context, since: float, clock: int, *, server: bool = False
    ) -> Span:
        from opentelemetry.trace import SpanKind

        kind = SpanKind.SERVER if server else SpanKind.INTERNAL
        span = self._tracer.start_span(name, context, kind, start_time=_at(since, clock))
        return Span(self, span, clock)


class Span:
    """A timed step of one request; `end` it once."""

    __slots__ = ("_clock", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: trace.Span, clock: int) -> None:
        self._tracer, self._span, self._clock = tracer, span, clock

    @property
    def is_recording(self) -> bool:
        """Whether it will be sent."""
        return self._span.is_recording()

    @property
    def trace_id(self) -> str:
        """Id of the whole trace, 32 hex digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """The header with which other processes make their spans children of this one."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def begin(self, name: str, since: float) -> Span:
        """Begin a child span."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span)
        return self._tracer._begin(name, context, since, self._clock)

    def note(self, name: str, since: float, until: float, error: str = "") -> None:
        """Record a finished child span; `error` is the code of the error that ended it, if any."""
        self.begin(name, since).end(until=until, error=error)

    def end(
        self,
        *,
        name: str = "",
        until: float | None = None,
        attributes: Attributes | None = None,
        error: str = "",
    ) -> None:
        """End the span, at `until` or now; `error` is the code of the error that ended it, if any.
        `name` replaces the name that it began with."""
        if name:
            self._span.update_name(name)
        if attributes:
            self._span.set_attributes(attributes)
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        until = time.monotonic() if until is None else until
        self._span.end(_at(until, self._clock))


@contextmanager
def timed(span: Span | None, name: str) -> Iterator[None]:
    """Record the body of the `with` statement as a child of the span, if there is one."""
    if span is None:
        yield
        return
    since = time.monotonic()
    error = ""
    try:
        yield
    except BaseException as raised:
        error = getattr(raised, "code", type(raised).__name__)
        raise
    finally:
        span.note(name, since, time.monotonic(), error)


def _clock() -> int:
    """The wall-clock time at 0 of the monotonic clock, in ns."""
    return time.time_ns() - time.monotonic_ns()


def _at(monotonic_s: float, clock: int) -> int:
    return clock + int(monotonic_s * 1e9)
