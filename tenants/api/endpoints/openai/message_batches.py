"""`/v1/messages/batches` as in Anthropic's API: requests in one body, answered within a day.

Each is a batch of `batches`: its requests are written to a file as lines, and its results are read
from the files that the batch ends with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, QueryDict, StreamingHttpResponse

from inference.errors import InvalidRequest, NotFound
from inference.operations.messages.messages import MESSAGES
from tenants.adapters import quota
from tenants.api.endpoints.openai import files
from tenants.api.endpoints.openai.batches import found
from tenants.api.openai import listing
from tenants.api.openai.views import Query, keyed_by_method
from tenants.batch_states import ENDED, Status
from tenants.batches.reading import MAX_LINES, lines, request_of
from tenants.batches.starting import new_batch, start
from tenants.files import blobs, keeping
from tenants.models import ApiKey, Batch, Purpose, StoredFile
from tenants.models.files import new_file_id

MAX_PAGE = 1000
AT_ONCE = 100
"""Results that are read at a time."""
FILE_NAME = "message_batch.jsonl"
_json = msgspec.json.Encoder().encode


class _Request(msgspec.Struct):
    custom_id: str
    params: msgspec.Raw


class _Wanted(msgspec.Struct):
    requests: Annotated[list[_Request], msgspec.Meta(min_length=1, max_length=MAX_LINES)]


class _Line(msgspec.Struct):
    """A line of an output file (`batches.writing`)."""

    custom_id: str
    response: _Response | None = None
    error: _NeverAnswered | None = None


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _NeverAnswered(msgspec.Struct):
    code: str


_lines = msgspec.json.Decoder(_Line)
UNANSWERED = {"batch_expired": "expired", "batch_cancelled": "canceled"}
"""The type of a result, by the code of a line that was never answered."""


def shown(batch: Batch) -> dict[str, Any]:
    """The batch as clients see it."""
    is_over = batch.status in ENDED
    path = f"/v1/messages/batches/{batch.pk}/results"
    return {
        "id": batch.pk,
        "type": "message_batch",
        "processing_status": _processing(batch),
        "request_counts": _counts(batch, is_over=is_over),
        "created_at": _time(batch.created_at),
        "expires_at": _time(batch.expires_at),
        "cancel_initiated_at": _time(batch.cancelling_at),
        "ended_at": _time(batch.ended_at),
        "archived_at": None,
        "results_url": f"{settings.API_URL}{path}" if is_over else None,
    }


def _processing(batch: Batch) -> str:
    if batch.status in ENDED:
        return "ended"
    return "canceling" if batch.cancelling_at else "in_progress"


def _counts(batch: Batch, *, is_over: bool) -> dict[str, int]:
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if not is_over:
        return counts | {"processing": batch.total}
    if batch.status == Status.FAILED:
        return counts | {"errored": batch.total}
    rest = "canceled" if batch.status == Status.CANCELLED else "expired"
    counts |= {"succeeded": batch.completed, "errored": batch.failed}
    return counts | {rest: batch.total - batch.done}


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _of_messages(key: ApiKey) -> QuerySet[Batch]:
    return key.tenant.batches.filter(operation=MESSAGES.name)


def _list(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    """The newest first; `before_id` asks for the page before that batch."""
    query = Query(request.GET, ("after_id", "before_id", "limit"))
    before, plain = query.word("before_id"), QueryDict(mutable=True)
    for name, value in (
        ("after", before or query.word("after_id")),
        ("limit", query.word("limit")),
        ("order", "asc" if before else "desc"),
    ):
        if value is not None:
            plain[name] = value
    page = listing.page(_of_messages(key), Query(plain, listing.PARAMETERS), shown, most=MAX_PAGE)
    data = page["data"][::-1] if before else page["data"]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {"data": data, "first_id": None, "last_id": None, "has_more": page["has_more"]} | ends


def _create(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    """Keep the requests as a file of lines and make its batch. What is wrong with a request's
    parameters is its result."""
    try:
        requests = msgspec.json.decode(request.read(), type=_Wanted).requests
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid: {error}.", param="requests") from None
    id = new_file_id()
    try:
        with blobs.made(id) as written:
            written.writelines(_line(one) for one in requests)
            size_bytes = written.tell()
        with transaction.atomic():
            tenant = quota.locked(key.tenant_id)
            keeping.require_room(tenant, size_bytes)
            file = tenant.files.create(
                id=id, purpose=Purpose.BATCH, filename=FILE_NAME, size_bytes=size_bytes
            )
            batch = new_batch(key, MESSAGES, input_file=file, total=len(requests))
            start(batch, tenant)
    except BaseException:
        blobs.remove(id)
        raise
    return shown(batch)


def _line(request: _Request) -> bytes:
    body = msgspec.Raw(msgspec.json.format(bytes(request.params), indent=-1))
    line = {"custom_id": request.custom_id, "method": "POST", "url": MESSAGES.path, "body": body}
    return _json(line) + b"\n"


def _retrieve(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    return shown(found(_of_messages(key), id))


def _cancel(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    batch = found(_of_messages(key), id)
    batch.cancel()
    return shown(batch)


def _delete(request: HttpRequest, key: ApiKey, id: str) -> dict[str, str]:
    """Delete a batch that has ended, with its files; its usage stays in the ledger."""
    batch = _ended(key, id)
    with transaction.atomic():
        for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
            if file_id and key.tenant.files.filter(pk=file_id).exists():
                keeping.delete(key.tenant, file_id)
        batch.delete()
    return {"id": id, "type": "message_batch_deleted"}


def _ended(key: ApiKey, id: str) -> Batch:
    batch = found(_of_messages(key), id)
    if batch.status not in ENDED:
        raise InvalidRequest(
            f"The batch {id} is {_processing(batch)}. Wait until it has ended, or cancel it."
        )
    return batch


def _results(request: HttpRequest, key: ApiKey, id: str) -> StreamingHttpResponse:
    """A line of JSON for each request, those that were answered first."""
    batch = _ended(key, id)
    if batch.status == Status.FAILED:
        lines_found = _failures(_current(key, batch.input_file_id), batch.errors)
    else:
        outputs = [one for one in (batch.output_file_id, batch.error_file_id) if one]
        lines_found = _converted([_current(key, one) for one in outputs])
    return StreamingHttpResponse(_in_groups(lines_found), content_type="application/octet-stream")


async def _in_groups(found: Generator[bytes]) -> AsyncIterator[bytes]:
    """The lines, read on a thread as the client takes them."""
    with closing(found):
        while group := await asyncio.to_thread(lambda: b"".join(islice(found, AT_ONCE))):
            yield group


def _current(key: ApiKey, id: str) -> StoredFile:
    file = key.tenant.files.current().filter(pk=id).first()
    if file is None:
        raise NotFound("The results of this batch were deleted.")
    return file


def _converted(outputs: list[StoredFile]) -> Generator[bytes]:
    for output in outputs:
        with blobs.open(output.pk) as file:
            for text in file:
                line = _lines.decode(text)
                yield _json({"custom_id": line.custom_id, "result": _result(line)}) + b"\n"


def _result(line: _Line) -> dict[str, Any]:
    if line.response is None:
        assert line.error is not None, "a line has one of the two"
        return {"type": UNANSWERED[line.error.code]}
    if line.response.status_code == 200:
        return {"type": "succeeded", "message": line.response.body}
    return {"type": "errored", "error": line.response.body}


def _failures(file: StoredFile, errors: list[dict[str, Any]]) -> Generator[bytes]:
    """Results of a batch none of whose requests was run, because some are invalid."""
    by_line = {error["line"]: error["message"] for error in errors}
    number, first = next(iter(by_line.items()))
    why = f"No request of this batch was run, because request {number} is invalid: {first}"
    with blobs.open(file.pk) as opened:
        for line in lines(opened, file.size_bytes):
            error = InvalidRequest(by_line.get(line.number, why))
            body = msgspec.Raw(MESSAGES.errors.body(error))
            result = {"type": "errored", "error": body}
            yield _json({"custom_id": request_of(line.text).custom_id, "result": result}) + b"\n"


batches = keyed_by_method(files.USERS, MESSAGES.errors, GET=_list, POST=_create)
batch = keyed_by_method(files.USERS, MESSAGES.errors, GET=_retrieve, DELETE=_delete)
cancel = keyed_by_method(files.USERS, MESSAGES.errors, POST=_cancel)
results = keyed_by_method(files.USERS, MESSAGES.errors, GET=_results)
