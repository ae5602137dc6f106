"""Sends an adapter in parts, by the tus protocol; what has arrived is never sent again.

A broken connection is retried from the server's offset. If the program ends, the next push of the
same files resumes, because the address of an unfinished upload is remembered.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from lorikeet import retries
from lorikeet.api import Api
from lorikeet.failures import NotFound, Rejected, Unreachable, raise_for
from lorikeet.transfer.archive import Archive
from lorikeet.transfer.memory import Memory

TUS = {"Tus-Resumable": "1.0.0"}
PART_BYTES = 64 << 20
"""Most bytes of one request, because a proxy may have to buffer and repeat it."""
POLL_S = 0.5
"""Interval of asking for the upload's state."""

Progress = Callable[[int], None]
"""Called with the number of bytes that have arrived."""


class Upload:
    """The upload of one archive as a version of the adapter `name`."""

    def __init__(self, api: Api, archive: Archive, name: str, fields: dict[str, str]) -> None:
        self._api, self._archive = api, archive
        self._fields = {"adapter": name, "filename": archive.name} | fields
        purpose = f"{api.where.url} {sorted(self._fields.items())}"
        self._memory = Memory[str](f"{archive.fingerprint} {purpose}")

    def send(self, progress: Progress) -> dict[str, Any]:
        """Send the archive; returns the new version, once the server has inspected the archive.

        Raises:
            Rejected: the server refuses it.
            Unreachable: the server did not answer for too long; a later push resumes from here.
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
        except NotFound:  # it expired, or was cancelled elsewhere
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
        # Combined with the address that this client uses, in case a proxy changed the host.
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
            except retries.FAILED as error:
                failed += 1
                if failed == retries.ATTEMPTS:
                    raise _interrupted(error) from error
                retries.pause(failed)
                reached = self._offset(url)
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
        if response.status_code == 409:
            raise Unreachable(
                "Another push of these files is running, or an interrupted one has not ended yet."
            )
        _raise_for(response)
        return int(response.headers["upload-offset"])

    def _part(self, at: int, count: int, progress: Progress) -> Iterator[bytes]:
        for chunk in self._archive.read(at, count):
            yield chunk
            at += len(chunk)
            progress(at)

    def _offset(self, url: str) -> int:
        return retries.insisting(lambda: self._asked_offset(url))

    def _asked_offset(self, url: str) -> int:
        response = self._api.http.head(url, headers=TUS)
        if response.is_success:
            return int(response.headers["upload-offset"])
        if response.status_code == 404:
            raise NotFound("The upload no longer exists.")
        _raise_for(self._api.http.get(url))  # responses to HEAD have no message
        raise_for(response)
        raise AssertionError("it is no success")

    def _ended(self, url: str) -> dict[str, Any]:
        """Wait until the upload has ended. Raises Rejected if it is refused."""
        while True:
            body = retries.insisting(lambda: self._state(url))
            if body["state"] == "refused":
                raise Rejected(body["problem"]["detail"])
            if body["state"] == "complete":
                version: dict[str, Any] = body["version"]
                return version
            time.sleep(POLL_S)

    def _state(self, url: str) -> dict[str, Any]:
        response = self._api.http.get(url)
        raise_for(response)
        state: dict[str, Any] = response.json()
        return state


def _raise_for(response: httpx.Response) -> None:
    """As `raise_for`; an error of the adapter itself is raised as Rejected."""
    if response.status_code in (400, 413, 415):
        raise Rejected(response.json()["detail"])
    raise_for(response)


def _interrupted(error: Exception) -> Unreachable:
    reason = str(error) or type(error).__name__
    return Unreachable(f"The upload was interrupted ({reason}). Push again to resume it.")
