"""The output files of a batch that ends, in OpenAI's format: one with the answers, another with
failures and lines that were never answered, both in the order of the lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import msgspec

from inference.gateway.lines.seals import line_id
from tenants.batch_states import Status
from tenants.batches.reading import BatchRequest, lines, request_of
from tenants.files import blobs, keeping
from tenants.models import Batch, BatchLine, Purpose, StoredFile
from tenants.models.files import new_file_id

OK = 200
AT_ONCE = 500
"""Answers read from the database at a time."""
NEVER_ANSWERED = {
    Status.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    Status.CANCELLED: ("batch_cancelled", "This request was not executed because the batch ended."),
}
"""Code and message for lines without an answer, by how the batch ends."""

_json = msgspec.json.Encoder().encode


class BatchOutput:
    """One of the two files while it is being written."""

    def __init__(self, role: str, id: str, file: IO[bytes]) -> None:
        self.role, self.id = role, id
        self._file = file

    def write(self, line: bytes) -> None:
        self._file.write(line + b"\n")

    @property
    def size_bytes(self) -> int:
        return self._file.tell()


@contextmanager
def files_of(batch: Batch) -> Iterator[dict[str, StoredFile]]:
    """The output files of a batch that ends, by the name of the batch's field. They are
    stored, their rows are not saved yet; a file without lines is left out. If the block fails, they
    are removed."""
    written: list[BatchOutput] = []
    try:
        with ExitStack() as open_files:
            for role in ("output", "error"):
                id = new_file_id()
                file = open_files.enter_context(blobs.made(id))
                written.append(BatchOutput(role, id, file))
            _write(batch, *written)
            sizes = {one.id: one.size_bytes for one in written}
        yield {
            f"{one.role}_file": _row(batch, one, sizes[one.id]) for one in written if sizes[one.id]
        }
    except BaseException:
        for one in written:
            blobs.remove(one.id)
        raise
    for one in written:
        if not sizes[one.id]:
            blobs.remove(one.id)


def _row(batch: Batch, output: BatchOutput, size_bytes: int) -> StoredFile:
    return StoredFile(
        id=output.id,
        tenant_id=batch.tenant_id,
        purpose=Purpose.BATCH_OUTPUT,
        filename=f"{batch.pk}_{output.role}.jsonl",
        size_bytes=size_bytes,
        expires_at=keeping.expiry(batch.output_seconds),
    )


def _write(batch: Batch, answers: BatchOutput, failures: BatchOutput) -> None:
    rows = iter(batch.lines.order_by("number").iterator(chunk_size=AT_ONCE))
    row = next(rows, None)
    with blobs.open(batch.input_file_id) as file:
        for line in lines(file, batch.input_file.size_bytes):
            request, id = request_of(line.text), line_id(batch.pk, line.number)
            if row is None or row.number != line.number:
                failures.write(_unanswered(request, id, Status(batch.ending)))
                continue
            (answers if row.status_code == OK else failures).write(_answered(request, id, row))
            row = next(rows, None)


def _answered(request: BatchRequest, id: str, row: BatchLine) -> bytes:
    response = {
        "status_code": row.status_code,
        "request_id": f"req_{id}",
        "body": msgspec.Raw(_one_line(bytes(row.body))),
    }
    if row.total_ms is not None:
        response["timing"] = {"first_token_ms": row.first_token_ms, "total_ms": row.total_ms}
    return _json(_line_ids(request, id) | {"response": response, "error": None})


def _unanswered(request: BatchRequest, id: str, ending: Status) -> bytes:
    code, message = NEVER_ANSWERED[ending]
    error = {"code": code, "message": message}
    return _json(_line_ids(request, id) | {"response": None, "error": error})


def _line_ids(request: BatchRequest, id: str) -> dict[str, Any]:
    return {"id": f"batch_req_{id}", "custom_id": request.custom_id}


def _one_line(body: bytes) -> bytes:
    return msgspec.json.format(body, indent=-1) if b"\n" in body else body
