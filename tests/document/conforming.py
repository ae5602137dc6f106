"""Checks the answers of all tests: one that does not conform to the OpenAPI document or, under
`/v1`, to the SDKs' types (`sdk_types`) fails the test. Events of streams are checked as they are
read.

With RECORD_ANSWERS, a folder, answers are recorded for generated clients (`make clients`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from tests.document import sdk_types
from tests.document.document import Answer, Document

FOLDER = os.environ.get("RECORD_ANSWERS", "")


class NotAsDescribed(AssertionError):
    """An answer does not conform to the OpenAPI document."""


@cache
def described() -> Document:
    """The document, built once, at the API's first answer."""
    return Document()


class Conforming:
    """The outermost middleware, so that it sees what clients see."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        ours = request.path.startswith(("/api/v1/", "/v1/"))
        if ours and settings.ROOT_URLCONF == "gateway.urls":
            check(request, response)
        return response


def check(request: HttpRequest, response: HttpResponseBase) -> None:
    """Raises NotAsDescribed."""
    headers = {name.lower(): value for name, value in response.items()}
    body = None if response.streaming else response.content  # type: ignore[attr-defined]
    answer = Answer(request.method or "", request.path, response.status_code, headers, body)
    if request.path in ("/api/v1/schema/", "/api/v1/docs/"):
        return
    examine(answer)


async def seen_later(response: httpx.Response) -> None:
    """`seen` for an asynchronous client."""
    if _is_json(response):
        await response.aread()
    seen(response)


def seen(response: httpx.Response) -> None:
    """A response hook for clients of a running gateway or console, which checks JSON answers and
    the events of streams."""
    request, path = response.request, response.request.url.path
    if str(response.headers.get("content-type", "")).startswith("text/event-stream"):
        operation = described().operation(request.method, path)
        if operation is not None:
            response.stream = Events(response.stream, operation["operationId"])
    elif _is_json(response) and described().template(path):
        headers = {name.lower(): value for name, value in response.headers.items()}
        body = response.read()
        examine(Answer(request.method, path, response.status_code, headers, body))


class Events(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A stream whose events are checked as they are read."""

    def __init__(self, stream: Any, operation: str) -> None:
        self._stream, self._operation = stream, operation
        self._rest = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._look(part)
            yield part

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._look(part)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()

    def close(self) -> None:
        self._stream.close()

    def _look(self, part: bytes) -> None:
        """Raises NotAsDescribed."""
        *events, self._rest = (self._rest + part).split(b"\n\n")
        for event in events:
            data = event.rpartition(b"data: ")[2]
            if data != b"[DONE]" and b'"error"' not in data[:40]:
                _must_be_typed(self._operation, data, event=True)


def _must_be_typed(operation: str, body: bytes, *, event: bool = False) -> None:
    if faults := sdk_types.faults(operation, body, event=event):
        raise NotAsDescribed(f"{operation}: {'; '.join(faults)}: {body!r:.500}")


def _is_json(response: httpx.Response) -> bool:
    return str(response.headers.get("content-type", "")).partition(";")[0].endswith("json")


def examine(answer: Answer) -> None:
    """Raises NotAsDescribed."""
    if faults := described().faults(answer):
        said = f"{answer.method} {answer.path}: {'; '.join(faults)}: {answer.body!r:.500}"
        raise NotAsDescribed(said)
    operation = described().operation(answer.method, answer.path)
    if operation is not None and answer.body and answer.status == 200:
        _must_be_typed(operation["operationId"], answer.body)
    if FOLDER and answer.body:
        record(answer)


def record(answer: Answer) -> None:
    """Record an answer, once for each different one."""
    operation = described().operation(answer.method, answer.path)
    if operation is None or answer.method == "HEAD" or answer.body is None:
        return
    text = json.dumps(
        {
            "operation": operation["operationId"],
            "method": answer.method.lower(),
            "path": described().template(answer.path),
            "status": answer.status,
            "media_type": answer.media_type,
            "body": answer.body.decode(),
        }
    )
    folder = Path(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json").write_text(text)
