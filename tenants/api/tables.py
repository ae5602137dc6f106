"""CSV that is written while it is read from the database."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from rest_framework.renderers import JSONRenderer

CSV = "text/csv"
CHUNK_ROWS = 1000
"""What is in memory at a time."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet takes a cell that begins so (also full width) for a formula."""


class CsvRenderer(JSONRenderer):
    """Lets `?format=csv` and `Accept: text/csv` through; what it renders itself are errors."""

    media_type = CSV
    format = "csv"


def download(
    filename: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> StreamingHttpResponse:
    """Answers with a file of these rows under a line of column names, in constant memory."""
    return StreamingHttpResponse(
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
