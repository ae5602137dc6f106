"""CSV that is written while it is read from the database.

Each download has a connection to the database until its client has read the last row. So they are
few, and tenants share them.
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

from inference.shares import Shares

CSV = "text/csv"
CHUNK_ROWS = 1000
"""What is in memory at a time."""
AT_ONCE = 12
"""Downloads of a console; a quarter of them of one tenant. Where tenants that have few come upon
others that have many, there are twice as many, which leaves connections for all the rest."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet takes a cell that begins so (also full width) for a formula."""


class CsvRenderer(JSONRenderer):
    """Lets `?format=csv` and `Accept: text/csv` through; what it renders itself are errors."""

    media_type = CSV
    format = "csv"


class TooManyDownloads(APIException):
    """The tenant has its share of downloads."""

    status_code = HTTPStatus.TOO_MANY_REQUESTS
    default_detail = "Too many downloads run at this time: try again when one has ended."
    default_code = "too_many_downloads"
    wait = 1
    """When to try again, in seconds; sent as Retry-After."""


class _Download(StreamingHttpResponse):
    """One of its owner's, until it is closed, or nobody has it any more: not each is sent."""

    _running: ClassVar[Shares] = Shares(AT_ONCE)
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, owner: str, content: AsyncIterator[bytes], **fields: Any) -> None:
        with self._lock:
            if not self._running.has_room(owner, 1):
                raise TooManyDownloads
            self._running.take(owner, 1)
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
    """Answers with a file of these rows under a line of column names, in constant memory.

    `owner` is the tenant who asks, by its slug; empty for the installation.

    Raises:
        TooManyDownloads: it has its share of them.
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
        yield text.getvalue().encode()  # the column names, of no rows


async def _from_thread(parts: Generator[bytes]) -> AsyncIterator[bytes]:
    """Django would read an ordinary iterator to its end before it sent the first byte."""
    try:
        while part := await sync_to_async(lambda: next(parts, b""))():
            yield part
    finally:
        await sync_to_async(parts.close)()
