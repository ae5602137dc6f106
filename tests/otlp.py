"""A trace collector for tests: accepts OTLP over HTTP, as protobuf, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Collected:
    """One span. Ids are hexadecimal, times in ns; `parent` is empty for a root span."""

    name: str
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    attributes: dict[str, Any]
    is_error: bool
    service: str
    instance: str


class Collector:
    """The spans, headers and uncompressed bodies that were received."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Collected] = []
        self.headers: list[dict[str, str]] = []
        self.raw = b""

    def named(self, name: str) -> list[Collected]:
        """The spans of this name, ordered by their start."""
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.began)

    def under(self, parent: Collected) -> list[str]:
        """The names of a span's children, ordered by their start."""
        parts = [span for span in self.spans if span.parent == parent.id]
        return [span.name for span in sorted(parts, key=lambda span: (span.began, span.ended))]

    def take(self, headers: dict[str, str], body: bytes) -> None:
        """Read one message."""
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.headers.append(headers)
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            of = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Collected(
                            name=span.name,
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            began=span.start_time_unix_nano,
                            ended=span.end_time_unix_nano,
                            attributes=_values(span.attributes),
                            is_error=span.status.code == 2,
                            service=of["service.name"],
                            instance=of["service.instance.id"],
                        )
                    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on loopback that runs until the context ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                found.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
