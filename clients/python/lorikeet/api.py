"""Requests to the management API and to the inference API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import quote

import httpx

from lorikeet import connection
from lorikeet.connection import Connection
from lorikeet.failures import raise_for

TIMEOUT = httpx.Timeout(60, connect=10, read=120)
"""In seconds. Long for reads, because the request that ends an upload is answered only after a
worker has inspected it."""


class Api:
    """Client of both APIs, with the key. Error responses are raised as Failure."""

    def __init__(self, where: Connection, **options: Any) -> None:
        """`options` are httpx's."""
        self.where = where
        headers = {"Authorization": f"Bearer {where.key}", "User-Agent": "lorikeet-client"}
        options.setdefault("timeout", TIMEOUT)
        self.http = httpx.Client(headers=headers, **options)

    def __call__(self, method: str, path: str, **options: Any) -> Any:
        """Call the management API under `/api/v1/`; returns its JSON, None if the body is empty."""
        response = self.http.request(method, f"{self.where.url}/api/v1/{path}", **options)
        raise_for(response)
        return response.json() if response.content else None

    def all(self, path: str, **query: Any) -> list[Any]:
        """All entries of a paged list."""
        found: list[Any] = []
        page = 1
        while True:
            body = self("GET", path, params={**query, "page": page, "limit": 200})
            found += body["results"]
            if body["next"] is None:
                return found
            page += 1

    def whoami(self) -> dict[str, Any]:
        """The key's tenant, its scopes, and the address of the inference API."""
        response = self.http.get(f"{self.where.url}/hub/api/whoami-v2")
        raise_for(response)
        body: dict[str, Any] = response.json()
        return body

    @cached_property
    def api_url(self) -> str:
        """The address of the inference API: as it is set, or as the console says."""
        url: str = self.where.api_url or self.whoami()["lorikeet"]["api_url"]
        return url.rstrip("/")

    def infer(self, method: str, path: str, **options: Any) -> Any:
        """Call the inference API under `/v1/`; returns its JSON."""
        response = self.http.request(method, f"{self.api_url}/v1/{path}", **options)
        raise_for(response)
        return response.json()

    @contextmanager
    def downloaded(self, path: str) -> Iterator[Iterator[bytes]]:
        """Download from the inference API under `/v1/`, chunk by chunk."""
        with self.http.stream("GET", f"{self.api_url}/v1/{path}") as response:
            if not response.is_success:
                response.read()
                raise_for(response)
            yield response.iter_bytes()

    @contextmanager
    def streamed(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
        """The data of a stream's events, from the inference API under `/v1/`."""
        url = f"{self.api_url}/v1/{path}"
        with self.http.stream("POST", url, json=body) as response:
            if not response.is_success:
                response.read()
                raise_for(response)
            yield _events(response.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("data:") and (event := line.removeprefix("data:").strip()) != "[DONE]":
            yield event


@contextmanager
def connected() -> Iterator[Api]:
    """A client with the saved connection."""
    api = Api(connection.load())
    with api.http:
        yield api


def segment(name: str) -> str:
    """A name, quoted as a path segment of a URL."""
    return quote(name, safe="")
