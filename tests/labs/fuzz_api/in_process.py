"""Sends what `requests` sends to an ASGI application in this process; rolls back its changes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from urllib.parse import unquote_to_bytes, urlsplit

import channels.db
import requests
from asgiref.sync import async_to_sync
from django.core.asgi import get_asgi_application
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3 import HTTPHeaderDict, HTTPResponse

URL = "http://localhost"


def console() -> Any:
    """The console's Django application, without its guards."""
    return get_asgi_application()


class InProcess(BaseAdapter):
    """A session's transport adapter. Each request sees the database as it was before the first."""

    def __init__(self, application: Any) -> None:
        super().__init__()
        self._application = application
        self._built = HTTPAdapter()

    def send(  # type: ignore[override]
        self, request: requests.PreparedRequest, **_: Any
    ) -> requests.Response:
        with transaction.atomic(), _connection_kept():
            status, headers, body = async_to_sync(self._ask)(request)
            transaction.set_rollback(True)
        told = HTTPHeaderDict()
        for name, value in headers:
            told.add(name.decode("latin-1"), value.decode("latin-1"))
        raw = HTTPResponse(io.BytesIO(body), told, status, preload_content=False)
        return self._built.build_response(request, raw)

    def close(self) -> None:
        self._built.close()

    async def _ask(
        self, request: requests.PreparedRequest
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        parts, told = urlsplit(str(request.url)), request.body or b""
        assert isinstance(told, str | bytes)
        sent = told.encode() if isinstance(told, str) else told
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote_to_bytes(parts.path).decode(errors="replace"),
            "raw_path": parts.path.encode(),
            "root_path": "",
            "query_string": parts.query.encode(),
            "headers": [(b"host", b"localhost"), *map(_raw, request.headers.items())],
            "client": ("127.0.0.1", 1234),
            "server": ("127.0.0.1", 80),
        }
        messages: list[dict[str, Any]] = []
        asked = iter([{"type": "http.request", "body": sent, "more_body": False}])

        async def receive() -> dict[str, Any]:
            for message in asked:
                return message
            return await asyncio.Future()  # the client waits for the answer

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        await self._application(scope, receive, send)
        begun, *rest = messages
        return begun["status"], begun["headers"], b"".join(part.get("body", b"") for part in rest)


@contextmanager
def _connection_kept() -> Iterator[None]:
    """Keep Django and Channels from closing the connection in mid-transaction, as their test
    clients do."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    try:
        with mock.patch.object(channels.db, "close_old_connections"):
            yield
    finally:
        for signal in signals:
            signal.connect(close_old_connections)


def _raw(header: tuple[str, str | bytes]) -> tuple[bytes, bytes]:
    name, value = header
    raw = value if isinstance(value, bytes) else value.encode("latin-1", "replace")
    return name.lower().encode(), raw
