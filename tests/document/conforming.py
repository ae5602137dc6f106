"""Sees answers in all tests: one that is not as the document says fails the test.

With RECORD_ANSWERS, a folder, it writes them down for generated clients to read (`make clients`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import httpx
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from tests.document.document import Answer, Document

FOLDER = os.environ.get("RECORD_ANSWERS", "")


class NotAsDescribed(AssertionError):
    """An answer is not as the OpenAPI document says."""


@cache
def described() -> Document:
    """Made once, when the first answer of the API is given."""
    return Document()


class Conforming:
    """Outermost, so that it sees what clients see."""

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
    """What `seen` does, for an asynchronous client."""
    if _is_json(response):
        await response.aread()
        seen(response)


def seen(response: httpx.Response) -> None:
    """A hook of a client of a running gateway or console: JSON answers have to be as described."""
    request, path = response.request, response.request.url.path
    if _is_json(response) and described().template(path):
        headers = {name.lower(): value for name, value in response.headers.items()}
        body = response.read()
        examine(Answer(request.method, path, response.status_code, headers, body))


def _is_json(response: httpx.Response) -> bool:
    return str(response.headers.get("content-type", "")).partition(";")[0].endswith("json")


def examine(answer: Answer) -> None:
    """Raises NotAsDescribed."""
    if faults := described().faults(answer):
        said = f"{answer.method} {answer.path}: {'; '.join(faults)}: {answer.body!r:.500}"
        raise NotAsDescribed(said)
    if FOLDER and answer.body:
        record(answer)


def record(answer: Answer) -> None:
    """Write it down, once for each different one."""
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
