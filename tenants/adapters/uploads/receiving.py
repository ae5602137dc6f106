"""Takes an upload in: to disk while it is hashed, and down to exactly the two files of an adapter.

Nothing here is ever whole in memory, and all that is on disk are temporary files that vanish when
they are closed, unless the storage moved them away first.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from django.conf import settings
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

from inference.content import CONFIG, FILES, WEIGHTS, digest_of
from tenants.adapters.checks import archives
from tenants.adapters.checks.findings import shown
from tenants.adapters.uploads.refusals import Refusal, UploadRefused, too_large

COPY_BYTES = 256 << 10
PICKLE_NAMES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
COMPRESSED_TAR_NAMES = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_PICKLE = re.compile(rb"PK\x03\x04|\x80[\x02-\x05].{6}[^{]", re.DOTALL)
"""A torch file is a zip or a bare pickle. A safetensors file may begin with any byte (of its
header's length), but has an opening brace at the ninth."""


class HashedFile(TemporaryUploadedFile):
    """A temporary file that is hashed as it is written."""

    def __init__(self, name: str) -> None:
        os.makedirs(settings.FILE_UPLOAD_TEMP_DIR, exist_ok=True)
        super().__init__(name, "application/octet-stream", 0, None)
        self._hash = hashlib.sha256()

    @property
    def disk(self) -> IO[bytes]:
        """The file itself."""
        assert self.file is not None, "a temporary file has a file"
        return self.file

    def write(self, chunk: bytes) -> int:  # type: ignore[override]
        self._hash.update(chunk)
        self.size = (self.size or 0) + len(chunk)
        return self.disk.write(chunk)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def seal(self) -> None:
        """Everything is written: make it durable, and go back to the start for readers."""
        self.disk.flush()
        os.fsync(self.disk.fileno())
        self.disk.seek(0)


class HashingUploadHandler(FileUploadHandler):
    """Streams each file of a request into a HashedFile; one over the limit ends the request.

    Raises:
        UploadRefused: the files together are larger than MAX_ADAPTER_BYTES.
    """

    chunk_size = COPY_BYTES

    def __init__(self, request: Any = None) -> None:
        super().__init__(request)
        self.received_bytes = 0

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.file = HashedFile(self.file_name or "")

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.received_bytes += len(raw_data)
        if self.received_bytes > settings.MAX_ADAPTER_BYTES:
            self.file.close()
            raise too_large(settings.MAX_ADAPTER_BYTES)
        self.file.write(raw_data)

    def file_complete(self, file_size: int) -> HashedFile:
        self.file.seek(0)
        return self.file

    def upload_interrupted(self) -> None:
        if hasattr(self, "file"):
            self.file.close()


@dataclass(frozen=True, slots=True)
class Upload:
    """The two files of one adapter version, on disk and hashed. Close it in the end."""

    config: HashedFile
    weights: HashedFile

    @property
    def digest(self) -> str:
        return digest_of(self.config.sha256, self.weights.sha256)

    @property
    def size_bytes(self) -> int:
        return (self.config.size or 0) + (self.weights.size or 0)

    def files(self) -> Iterable[tuple[str, HashedFile]]:
        return ((CONFIG, self.config), (WEIGHTS, self.weights))

    def close(self) -> None:
        self.config.close()
        self.weights.close()


def collect(files: Sequence[UploadedFile[bytes]]) -> Upload:
    """The adapter among a request's files: the two of them, or one archive that holds them.

    Raises:
        UploadRefused: they are anything else, or the archive is not one to trust.
    """
    if len(files) == 1 and is_archive_name(name := str(files[0].name)):
        return unpack(_hashed(files[0]).disk, name)
    names = named(str(file.name) for file in files)
    return _sealed(dict(zip(names, map(_hashed, files), strict=True)))


def unpack(archive: IO[bytes], name: str) -> Upload:
    """The adapter in an archive, which `name` says to be a tar or a zip.

    Raises:
        UploadRefused: it holds anything else, or is not one to trust.
    """
    return _sealed(unpacked(archive, name, settings.MAX_ADAPTER_BYTES))


def _sealed(held: Mapping[str, HashedFile]) -> Upload:
    upload = Upload(held[CONFIG], held[WEIGHTS])
    try:
        refuse_pickle(upload.weights)
        for _, file in upload.files():
            file.seal()
    except BaseException:
        upload.close()
        raise
    return upload


def _hashed(file: UploadedFile[bytes]) -> HashedFile:
    assert isinstance(file, HashedFile), "FILE_UPLOAD_HANDLERS lacks HashingUploadHandler"
    return file


def is_archive_name(name: str) -> bool:
    return name.lower().endswith((".tar", ".zip"))


def named(names: Iterable[str]) -> list[str]:
    """The names as they came, if they are those of an adapter's two files and no others.

    Raises:
        UploadRefused: a file is missing, there twice, or not wanted.
    """
    found: list[str] = []
    for name in names:
        _refuse_name(name)
        if name in found:
            raise UploadRefused(Refusal.FILE_DUPLICATE, f"{name} is there twice.")
        found.append(name)
    for name in FILES:
        if name not in found:
            raise UploadRefused(
                Refusal.FILE_MISSING, f"{name} is missing: send {CONFIG} and {WEIGHTS}."
            )
    return found


def _refuse_name(name: str) -> None:
    lower = name.lower()
    if name in FILES:
        return
    if lower.endswith(PICKLE_NAMES):
        raise UploadRefused(
            Refusal.PICKLE_REFUSED,
            f"{shown(name)} can run code when it is loaded: save the adapter as safetensors.",
        )
    if lower.endswith(COMPRESSED_TAR_NAMES):
        raise UploadRefused(
            Refusal.ARCHIVE_UNSUPPORTED, f"{shown(name)} must be a plain .tar or a .zip."
        )
    raise UploadRefused(
        Refusal.FILE_UNEXPECTED,
        f"{shown(name)} does not belong to an adapter: only {CONFIG} and {WEIGHTS} do, "
        "or one .tar or .zip of them.",
    )


def refuse_pickle(weights: IO[bytes]) -> None:
    """Refuse what a pickle's or torch file's first bytes give away, whatever it is called."""
    weights.seek(0)
    if _PICKLE.match(weights.read(9)):
        raise UploadRefused(
            Refusal.PICKLE_REFUSED, f"{WEIGHTS} is a pickle or a torch file, not safetensors."
        )


def unpacked(archive: IO[bytes], name: str, max_bytes: int) -> dict[str, HashedFile]:
    """The two files out of an archive, which `name` says to be a tar or a zip.

    Raises:
        UploadRefused: see `archives`, and `named`.
    """
    opened = archives.open_zip if name.lower().endswith(".zip") else archives.open_tar
    files: dict[str, HashedFile] = {}
    try:
        with opened(archive) as members:
            for wanted in named(member.file_name for member in members):
                files[wanted] = HashedFile(wanted)
            if sum(member.size for member in members) > max_bytes:
                raise too_large(max_bytes)
            for member in members:
                _copy(member.read, files[member.file_name])
    except BaseException:
        for file in files.values():
            file.close()
        raise
    return files


def _copy(read: Callable[[int], bytes], target: HashedFile) -> None:
    while chunk := read(COPY_BYTES):
        target.write(chunk)
