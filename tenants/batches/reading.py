"""The input file of a batch: one request on each line, in OpenAI's format. Free of Django, because
a child process (`tenants.adapters.checks`) reads the file first and reports the errors of each
line.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

Lines are numbered from 1; empty lines are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import msgspec

from inference.errors import InferenceError, InvalidRequest, short
from inference.operations.bodies.shape import BodyShape
from inference.operations.operation import Call, Operation

MAX_LINES = 50_000
MAX_BYTES = 200 << 20
MAX_ERRORS = 100
"""Errors reported for one file."""
MAX_CUSTOM_ID = 512
MAX_MODELS = 100
"""Different models that one file may name."""
MAX_TEXTS = 50_000
"""Texts that one file may have embedded, as with OpenAI: the answers hold a vector for each."""
AROUND_BYTES = 8192
"""What a line may have in addition to the request's body."""


class BatchRequest(msgspec.Struct):
    """One line; `body` is its raw JSON."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_requests = msgspec.json.Decoder(BatchRequest)


def request_of(line: bytes) -> BatchRequest:
    """Decode a line. Raises msgspec.DecodeError or UnicodeDecodeError if it is not a request."""
    return _requests.decode(line)


class Numbered(NamedTuple):
    """A line that is not empty; `offset` is its position in the file in bytes."""

    number: int
    offset: int
    text: bytes


def lines(file: IO[bytes], max_bytes: int) -> Iterator[Numbered]:
    """The lines that are not empty, from the file's current position. A line of more than
    `max_bytes` is truncated and is the last."""
    number = offset = 0
    while text := file.readline(max_bytes + 1):
        number += 1
        if len(text) > max_bytes or not text.isspace():
            yield Numbered(number, offset, text)
        if len(text) > max_bytes:
            return
        offset += len(text)


@dataclass
class BatchReport:
    """What was found in a file: the number of requests, the line that first names each model, the
    number of texts to embed, and the errors."""

    requests: int = 0
    models: dict[str, int] = field(default_factory=dict)
    texts: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.errors) >= MAX_ERRORS

    def refuse(self, code: str, message: str, line: int | None = None, param: str = "") -> None:
        """Add an error."""
        error = {"code": code, "message": short(message), "param": param or None, "line": line}
        self.errors.append(error)


def read(file: IO[bytes], operation: Operation, max_body_bytes: int) -> BatchReport:
    """Read a whole file whose lines should be requests of this operation."""
    report, seen = BatchReport(), dict[str, int]()
    most = max_body_bytes + AROUND_BYTES
    for line in lines(file, most):
        report.requests += 1
        if report.requests > MAX_LINES:
            report.refuse("too_many_lines", f"A batch can have at most {MAX_LINES} requests.")
            break
        if len(line.text) > most:
            message = f"This line has more than {most} bytes; lines after it were not read."
            report.refuse("line_too_long", message, line.number)
            break
        _read_line(line, operation, max_body_bytes, report, seen)
        if report.full:
            break
    if not report.requests:
        report.refuse("empty_file", "The file has no requests.")
    return report


def _read_line(
    line: Numbered,
    operation: Operation,
    max_body_bytes: int,
    report: BatchReport,
    seen: dict[str, int],
) -> None:
    number = line.number
    try:
        request = request_of(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return report.refuse(
            "invalid_json_line", f"This line is not a valid request: {error}.", number
        )
    if not 0 < len(request.custom_id) <= MAX_CUSTOM_ID:
        message = f"`custom_id` must have 1 to {MAX_CUSTOM_ID} characters."
        return report.refuse("invalid_custom_id", message, number, "custom_id")
    if (before := seen.setdefault(request.custom_id, number)) != number:
        message = f"Line {before} has the same `custom_id`."
        return report.refuse("duplicate_custom_id", message, number, "custom_id")
    if request.method != "POST":
        return report.refuse("invalid_method", "`method` must be `POST`.", number, "method")
    if request.url != operation.path:
        message = f"`url` is {request.url[:64]!r}, but the batch's endpoint is {operation.path}."
        return report.refuse("mismatched_url", message, number, "url")
    try:
        call = _call_of(bytes(request.body), operation, max_body_bytes)
    except InferenceError as error:
        return report.refuse(error.code, error.message, number, f"body.{error.param or ''}")
    before, model = report.texts, call.model
    report.texts += call.workload.prompts if operation.pools else 0
    if before <= MAX_TEXTS < report.texts:  # reported once
        message = f"A batch can have at most {MAX_TEXTS} inputs, and this line exceeds that."
        return report.refuse("too_many_inputs", message, number, "body.input")
    if model not in report.models and len(report.models) >= MAX_MODELS:
        message = f"A batch can use at most {MAX_MODELS} models."
        return report.refuse("too_many_models", message, number, "body.model")
    report.models.setdefault(model, number)
    return None


def _call_of(body: bytes, operation: Operation, max_body_bytes: int) -> Call:
    """The call that a request's body describes.

    Raises:
        RequestError: a gateway would refuse the body.
    """
    if len(body) > max_body_bytes:
        raise InvalidRequest(f"The body has more than {max_body_bytes} bytes.")
    BodyShape(operation.max_numbers).feed(body)
    call = operation.parse(body)
    call.check_as_line()
    return call
