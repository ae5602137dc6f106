"""Sends an adapter in parts, by the protocol tus: what was sent is never sent again.

A connection that breaks is tried again from where the server has it. Where the program is ended,
the next push of the same files goes on: the address of an unfinished upload is remembered.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from lorikeet.api import Api
from lorikeet.failures import NotFound, Rejected, Unreachable, raise_for
from lorikeet.transfer.archive import Archive
from lorikeet.transfer.memory import Memory

TUS = {"Tus-Resumable": "1.0.0"}
PART_BYTES = 64 << 20
"""In one request: what a proxy may have to keep, and to ask for again."""
ATTEMPTS = 6
"""In a row without a byte that arrived; the pauses between them double from 1 s on."""
PAUSE_S = 1.0
LOOK_S = 0.5
"""Between two looks at what the server makes of it."""

Progress = Callable[[int], None]
"""Is told how many bytes have arrived."""


class Upload:
    """One archive on its way to be a version of the adapter `name`."""

    def __init__(self, api: Api, archive: Archive, name: str, fields: dict[str, str]) -> None:
        self._api, self._archive = api, archive
        self._fields = {"adapter": name, "filename": archive.name} | fields
        purpose = f"{api.where.url} {sorted(self._fields.items())}"
        self._memory = Memory[str](f"{archive.fingerprint} {purpose}")

    def send(self, progress: Progress) -> dict[str, Any]:
        """The version that it became, once the server has looked into it.

        Raises:
            Rejected: it is refused.
            Unreachable: the server was away for too long; a later push goes on from here.
        """
        try:
            version = self._sent(progress)
        except Rejected:
            self._memory.forget()
            raise
        self._memory.forget()
        return version

    def _sent(self, progress: Progress) -> dict[str, Any]:
        url = self._memory.recall() or self._create()
        try:
            self._send_all(url, progress)
        except NotFound:  # it expired, or was given up elsewhere
            url = self._create()
            self._send_all(url, progress)
        return self._ended(url)

    def _create(self) -> str:
        metadata = ",".join(
            f"{name} {base64.b64encode(value.encode()).decode()}"
            for name, value in self._fields.items()
        )
        headers = TUS | {
            "Upload-Length": str(self._archive.size),
            "Upload-Metadata": metadata,
        }
        response = self._api.http.post(f"{self._api.where.url}/api/v1/uploads", headers=headers)
        _raise_for(response)
        # Its own address as this client knows the server, whatever a proxy made of the host.
        path = httpx.URL(response.headers["location"]).raw_path.decode()
        url = f"{self._api.where.url}{path}"
        self._memory.remember(url)
        return url

    def _send_all(self, url: str, progress: Progress) -> None:
        failed, at = 0, self._offset(url)
        while at < self._archive.size:
            progress(at)
            try:
                reached = self._append(url, at, progress)
            except (httpx.TransportError, Unreachable) as error:
                failed += 1
                if failed == ATTEMPTS:
                    raise _gone(error) from error
                time.sleep(PAUSE_S * 2 ** (failed - 1))
                reached = self._offset_if_there(url, at)
            if reached > at:
                failed = 0
            at = reached
        progress(at)

    def _append(self, url: str, at: int, progress: Progress) -> int:
        count = min(PART_BYTES, self._archive.size - at)
        headers = TUS | {
            "Upload-Offset": str(at),
            "Content-Type": "application/offset+octet-stream",
            "Content-Length": str(count),
        }
        response = self._api.http.patch(
            url, headers=headers, content=self._part(at, count, progress)
        )
        if response.status_code == 409:  # another push of the same files, or one that was cut off
            return self._offset(url)
        _raise_for(response)
        return int(response.headers["upload-offset"])

    def _part(self, at: int, count: int, progress: Progress) -> Iterator[bytes]:
        for chunk in self._archive.read(at, count):
            yield chunk
            at += len(chunk)
            progress(at)

    def _offset(self, url: str) -> int:
        response = self._api.http.head(url, headers=TUS)
        if response.is_success:
            return int(response.headers["upload-offset"])
        if response.status_code == 404:
            raise NotFound("The upload is no longer there.")
        _raise_for(self._api.http.get(url))  # HEAD has no words
        raise_for(response)
        raise AssertionError("it is no success")

    def _offset_if_there(self, url: str, at: int) -> int:
        try:
            return self._offset(url)
        except httpx.TransportError:
            return at

    def _ended(self, url: str) -> dict[str, Any]:
        """Raises Rejected where it is refused."""
        while True:
            response = self._api.http.get(url)
            raise_for(response)
            body: dict[str, Any] = response.json()
            if body["state"] == "refused":
                raise Rejected(body["problem"]["detail"])
            if body["state"] == "complete":
                version: dict[str, Any] = body["version"]
                return version
            time.sleep(LOOK_S)


def _raise_for(response: httpx.Response) -> None:
    """As `raise_for`; what is said against the adapter itself is a Rejected."""
    if response.status_code in (400, 413, 415):
        raise Rejected(response.json()["detail"])
    raise_for(response)


def _gone(error: Exception) -> Unreachable:
    reason = str(error) or type(error).__name__
    return Unreachable(f"The upload broke off ({reason}). Push again to go on from there.")
