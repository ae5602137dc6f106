"""CSV that is streamed while it is read from the database.

Each download holds a database connection until its client has read the last row. So the number of
downloads is bounded, and tenants share it.
"""

from __future__ import annotations

import csv
import io
import weakref
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import islice
from threading import Lock
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from rest_framework.exceptions import APIException
from rest_framework.renderers import JSONRenderer

from inference.shared_capacity import SharedCapacity

CSV = "text/csv"
CHUNK_ROWS = 1000
"""Rows in memory at a time."""
AT_ONCE = 12
"""Downloads of one console process; one tenant gets a quarter of them. When tenants with few
downloads meet others with many, there may be twice as many in all, which still leaves connections
for everything else."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Spreadsheets interpret a cell that begins with one of these (also full width) as a formula."""


class CsvRenderer(JSONRenderer):
    """Makes DRF accept `?format=csv` and `Accept: text/csv`; itself it renders only errors."""

    media_type = CSV
    format = "csv"


class TooManyDownloads(APIException):
    """The tenant has used its share of downloads."""

    status_code = HTTPStatus.TOO_MANY_REQUESTS
    default_detail = "Too many downloads are running. Try again when one has ended."
    default_code = "too_many_downloads"
    wait = 1
    """When to try again, in seconds; sent as Retry-After."""


class _Download(StreamingHttpResponse):
    """Counts for its owner until it is closed or garbage collected: not every response is sent."""

    _running: ClassVar[SharedCapacity[str]] = SharedCapacity(AT_ONCE)
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, owner: str, content: AsyncIterator[bytes], **fields: Any) -> None:
        with self._lock:
            if not self._running.take(owner, 1):
                raise TooManyDownloads
        self._ended = weakref.finalize(self, self._end, owner)
        super().__init__(content, **fields)

    @classmethod
    def _end(cls, owner: str) -> None:
        with cls._lock:
            cls._running.give_back(owner, 1)

    def close(self) -> None:
        super().close()
        self._ended()


def download(
    filename: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, owner: str
) -> StreamingHttpResponse:
    """A response that streams these rows under a line of column names, in constant memory.

    `owner` is the slug of the requesting tenant; empty for the installation.

    Raises:
        TooManyDownloads: the owner has used its share of downloads.
    """
    return _Download(
        owner,
        _from_thread(_lines(columns, iter(rows))),
        content_type=f"{CSV}; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{filename}"'},
    )


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value


def _lines(columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> Generator[bytes]:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        writer.writerows([_cell(value) for value in row] for row in chunk)
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    if text.tell():
        yield text.getvalue().encode()  # there were no rows: only the column names


async def _from_thread(parts: Generator[bytes]) -> AsyncIterator[bytes]:
    """Makes the parts an asynchronous iterator: Django would read a synchronous one to its end
    before sending the first byte."""
    try:
        while part := await sync_to_async(lambda: next(parts, b""))():
            yield part
    finally:
        await sync_to_async(parts.close)()
