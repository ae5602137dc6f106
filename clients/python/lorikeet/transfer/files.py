"""Sends a file in parts (`/v1/uploads`); parts that have arrived are never sent again.

A broken connection is retried. If the program ends, the next upload of the same file resumes,
because the parts that have arrived are remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypedDict

from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from lorikeet.api import Api
from lorikeet.failures import Failure, raise_for
from lorikeet.output import notes
from lorikeet.retries import insisting
from lorikeet.transfer.memory import Memory, fingerprint

PART_BYTES = 8 << 20
"""Size of a part. The server accepts parts of up to 64 MiB, and a thousand of them."""

Progress = Callable[[int], None]
"""Called with the number of bytes that have arrived."""


class _Begun(TypedDict):
    """An upload, and its parts that have arrived, in order from the first."""

    upload: str
    parts: list[str]


class _UploadMissing(Exception):
    """The upload has ended, or its file was deleted."""


class FileUpload:
    """The upload of a file, for `purpose`."""

    def __init__(self, api: Api, path: Path, purpose: str) -> None:
        """Raises Failure if there is nothing to send."""
        if not path.is_file() or not path.stat().st_size:
            raise Failure(f"{path} is not a file, or is empty.")
        self._api, self._path, self._purpose = api, path, purpose
        self.size = path.stat().st_size
        of = f"{fingerprint([path])} {api.api_url} {purpose} in {PART_BYTES}"
        self._memory = Memory[_Begun](of)

    def send(self, progress: Progress) -> str:
        """Send the file; returns its id at the server. Until `forget`, another upload of the same
        file continues this one.

        Raises:
            Unreachable: the server did not answer for too long; a later upload resumes from here.
        """
        try:
            return self._sent(progress)
        except _UploadMissing:
            self._memory.forget()
            return self._sent(progress)

    def forget(self) -> None:
        """Forget this upload: sending the file again then starts a new one."""
        self._memory.forget()

    def _sent(self, progress: Progress) -> str:
        begun = self._memory.recall() or self._begin()
        with self._path.open("rb") as file:
            while (start := len(begun["parts"]) * PART_BYTES) < self.size:
                progress(start)
                part = self._add(begun["upload"], self._read(file, start))
                begun["parts"].append(part)
                self._memory.remember(begun)
        progress(self.size)
        ended = self._post(f"{begun['upload']}/complete", json={"part_ids": begun["parts"]})
        if ended["file"] is None:
            raise _UploadMissing
        id: str = ended["file"]["id"]
        return id

    def _begin(self) -> _Begun:
        wanted = {
            "filename": self._path.name,
            "purpose": self._purpose,
            "bytes": self.size,
            "mime_type": "application/jsonl",
        }
        made = insisting(lambda: self._api.infer("POST", "uploads", json=wanted))
        begun = _Begun(upload=made["id"], parts=[])
        self._memory.remember(begun)
        return begun

    def _read(self, file: IO[bytes], start: int) -> bytes:
        file.seek(start)
        data = file.read(PART_BYTES)
        if len(data) < min(PART_BYTES, self.size - start):
            raise Failure(f"{self._path} became shorter while it was being sent. Send it again.")
        return data

    def _add(self, upload: str, data: bytes) -> str:
        id: str = self._post(f"{upload}/parts", files={"data": ("part", data)})["id"]
        return id

    def _post(self, path: str, **options: Any) -> Any:
        """Raises _UploadMissing if the upload no longer exists."""
        url = f"{self._api.api_url}/v1/uploads/{path}"

        def posted() -> Any:
            response = self._api.http.post(url, **options)
            if response.status_code in (404, 409):
                raise _UploadMissing
            raise_for(response)
            return response.json()

        return insisting(posted)


def sent_with_bar(upload: FileUpload) -> str:
    """Send the file with a progress bar; returns its id at the server."""
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=notes, disable=not notes.is_terminal) as bar:
        task = bar.add_task("", total=upload.size)
        return upload.send(lambda sent: bar.update(task, completed=sent))
