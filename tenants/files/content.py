"""Responds with the bytes of a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

from django.http import StreamingHttpResponse
from django.utils.http import content_disposition_header

from tenants.files import blobs
from tenants.models import StoredFile, TenantExport

CHUNK_BYTES = 256 << 10


def answer_with(
    file: StoredFile | TenantExport, *, attached: bool = False
) -> StreamingHttpResponse:
    """A response with the whole file; a browser saves an `attached` one under its name."""
    headers = {"Content-Length": str(file.size_bytes), "X-Content-Type-Options": "nosniff"}
    if attached:
        headers["Content-Disposition"] = content_disposition_header(True, file.filename) or ""
    return StreamingHttpResponse(
        _chunks(file.pk), content_type="application/octet-stream", headers=headers
    )


async def _chunks(id: str) -> AsyncIterator[bytes]:
    with closing(await asyncio.to_thread(blobs.open, id)) as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
