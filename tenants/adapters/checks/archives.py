"""Reads an untrusted tar or zip of regular files; a tar may be compressed by gzip.

Which it is, its first bytes tell, whatever its name. Python's readers are told what to read, never
where to write: nothing is extracted to a path that the archive names. This module adds the checks
that they lack: they would read a header of gigabytes at once, follow links, skip garbage, and
inflate a zip bomb.
"""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO

from tenants.adapters.checks.findings import message_of, shown
from tenants.adapters.uploads.content import MAX_RATIO, RATIO_FREE_BYTES
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused

MAX_MEMBERS = 2048
"""A trainer's folder with a hundred checkpoints."""
INFLATED_AT_ONCE = 1 << 20
MAX_READ_BYTES = 512 << 10
"""The most that a reader may request at once, such as a zip's whole directory."""
MAX_TAR_HEADER_BYTES = 8 << 10
"""The longest long name or extended header. Python 3.11 before 3.11.10 reads one in quadratic time
(CVE-2024-6232): 48 s for 125 KB."""
_ZIP, _GZIP = (b"PK\x03\x04", b"PK\x05\x06"), b"\x1f\x8b"
_END_OF_ZIP = b"PK\x05\x06"
_END_OF_ZIP_BYTES = 22


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A regular file in an archive, `size` bytes long when unpacked. `open` starts reading it, and
    returns the `read` of a file; it may be called again."""

    path: str
    size: int
    open: Callable[[], Callable[[int], bytes]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A member before its path is checked; `open` starts reading it."""

    path: str
    is_folder: bool
    size: int
    open: Callable[[], IO[bytes]]


class _Bounded(io.RawIOBase):
    """An archive whose reader cannot request more than `limit` bytes at once, nor seek outside the
    file (which some systems report as a disk error)."""

    def __init__(self, stream: IO[bytes], limit: int = MAX_READ_BYTES) -> None:
        self._stream = stream
        self._size = stream.seek(0, io.SEEK_END)
        self.limit = limit
        stream.seek(0)

    def read(self, size: int | None = -1) -> bytes:
        most = self.limit + 1
        data = self._stream.read(most if size is None or size < 0 else min(size, most))
        if len(data) == most:
            raise _invalid(f"it has a header of more than {self.limit} bytes")
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET and not 0 <= offset <= self._size:
            raise _invalid("it has an offset before its start or after its end")
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _invalid(reason: str) -> UploadRefused:
    return UploadRefused(UploadRefusal.ARCHIVE_INVALID, f"The archive is damaged: {reason}.")


def open_archive(
    stream: IO[bytes], scratch: IO[bytes]
) -> AbstractContextManager[list[ArchiveMember]]:
    """The files of an archive. A compressed one is inflated to `scratch`, an empty file.

    Raises:
        UploadRefused: see `open_tar` and `open_zip`; or it would expand too much.
    """
    stream.seek(0)
    head = stream.read(4)
    if head.startswith(_ZIP):
        return open_zip(stream)
    if head.startswith(_GZIP):
        _inflate(stream, scratch)
        return open_tar(scratch)
    return open_tar(stream)


def _inflate(stream: IO[bytes], target: IO[bytes]) -> None:
    """Decompress all members of a gzip file, within the ratio that a zip may have."""
    stored = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    left = RATIO_FREE_BYTES + MAX_RATIO * stored
    member, data = zlib.decompressobj(wbits=31), b""
    with _damage_as_refusal():
        while data or (data := stream.read(MAX_READ_BYTES)):
            if member.eof:
                if not data.startswith(_GZIP):
                    break  # padding, which gzip ignores too
                member = zlib.decompressobj(wbits=31)
            inflated = member.decompress(data, INFLATED_AT_ONCE)
            data = member.unused_data if member.eof else member.unconsumed_tail
            if (left := left - len(inflated)) < 0:
                raise UploadRefused(
                    UploadRefusal.ARCHIVE_BOMB,
                    f"The archive of {stored} bytes would expand to more than {MAX_RATIO} times "
                    "its size.",
                )
            target.write(inflated)
        if not member.eof:
            raise _invalid("it ends too early")
    target.flush()


@contextmanager
def open_tar(stream: IO[bytes]) -> Iterator[list[ArchiveMember]]:
    """The files of an uncompressed tar.

    Raises:
        UploadRefused: it is damaged, has too many files, or any that is not regular.
    """
    with ExitStack() as stack:
        with _damage_as_refusal():
            bounded = _Bounded(stream, MAX_TAR_HEADER_BYTES)
            archive = stack.enter_context(tarfile.open(fileobj=bounded, mode="r:"))
            members = _checked(_tar_entry(archive, member) for member in archive)
            bounded.limit = MAX_READ_BYTES
        yield members


def _tar_entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> _Entry:
    if not (member.isdir() or member.isreg()) or member.issparse():
        raise _wrong_kind(member.name)

    def opened() -> IO[bytes]:
        file = archive.extractfile(member)
        assert file is not None, "regular files can be read"
        return file

    return _Entry(member.name, member.isdir(), member.size, opened)


@contextmanager
def open_zip(stream: IO[bytes]) -> Iterator[list[ArchiveMember]]:
    """The files of a zip.

    Raises:
        UploadRefused: it is damaged, encrypted, a zip bomb, has data before or after it, too many
            files, or any that is not regular.
    """
    _check_zip_end(stream)
    with ExitStack() as stack:
        with _damage_as_refusal():
            archive = stack.enter_context(zipfile.ZipFile(_Bounded(stream)))
            infos = archive.infolist()
            if infos and min(info.header_offset for info in infos) != 0:
                raise _invalid("there is data before the first file")
            _refuse_bomb(infos)
            members = _checked(_zip_entry(archive, info) for info in infos)
        yield members


def _check_zip_end(stream: IO[bytes]) -> None:
    """The directory's end record must end the file, or two readers may see two archives."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _END_OF_ZIP_BYTES))
    record = stream.read(_END_OF_ZIP_BYTES)
    if (
        len(record) < _END_OF_ZIP_BYTES
        or not record.startswith(_END_OF_ZIP)
        or record[-2:] != b"\0\0"
    ):
        raise _invalid("the zip's directory is not at its end")


def _refuse_bomb(infos: list[zipfile.ZipInfo]) -> None:
    inflated = sum(info.file_size for info in infos)
    stored = sum(info.compress_size for info in infos)
    if inflated > RATIO_FREE_BYTES + MAX_RATIO * stored:
        raise UploadRefused(
            UploadRefusal.ARCHIVE_BOMB,
            f"The archive would expand from {stored} to {inflated} bytes, more than "
            f"{MAX_RATIO} times its size.",
        )


def _zip_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry:
    if info.flag_bits & 1:
        raise UploadRefused(
            UploadRefusal.ARCHIVE_ENCRYPTED, f"{shown(info.filename)} in the archive is encrypted."
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UploadRefused(
            UploadRefusal.ARCHIVE_UNSUPPORTED,
            f"{shown(info.filename)} has the compression method {info.compress_type}: use "
            "deflate or none.",
        )
    kind = stat.S_IFMT(info.external_attr >> 16)  # Unix mode bits; 0 if made on another system
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _wrong_kind(info.filename)
    return _Entry(info.filename, info.is_dir(), info.file_size, lambda: archive.open(info))


def _wrong_kind(path: str) -> UploadRefused:
    return UploadRefused(
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
        f"{shown(path)} in the archive is a link, a device or something else that is not a "
        "regular file.",
    )


def _checked(entries: Iterator[_Entry]) -> list[ArchiveMember]:
    members: list[ArchiveMember] = []
    for count, entry in enumerate(entries, start=1):
        if count > MAX_MEMBERS:
            raise UploadRefused(
                UploadRefusal.ARCHIVE_CROWDED,
                f"The archive has more than {MAX_MEMBERS} files and folders.",
            )
        parts = _parts(entry.path)
        if not entry.is_folder and parts:
            members.append(ArchiveMember("/".join(parts), entry.size, _safely(entry.open)))
    return members


def _parts(path: str) -> list[str]:
    """The path's parts without `.`; empty for the archive's top folder."""
    if path.startswith("/") or "\\" in path or ":" in path or ".." in path.split("/"):
        raise UploadRefused(
            UploadRefusal.ARCHIVE_PATH_REFUSED,
            f"The path {shown(path)} in the archive is not allowed.",
        )
    return [part for part in path.split("/") if part not in ("", ".")]


def _safely(opened: Callable[[], IO[bytes]]) -> Callable[[], Callable[[int], bytes]]:
    """`opened`, with damage as a refusal there and in each `read`."""

    def open() -> Callable[[int], bytes]:
        with _damage_as_refusal():
            file = opened()

        def read(size: int) -> bytes:
            with _damage_as_refusal():
                return file.read(size)

        return read

    return open


@contextmanager
def _damage_as_refusal() -> Iterator[None]:
    """Turn what Python's readers raise for a damaged archive into a refusal; never an OSError."""
    try:
        yield
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        ValueError,
        OverflowError,
        NotImplementedError,
        RuntimeError,
        LookupError,
        TypeError,
    ) as error:
        raise _invalid(message_of(error)) from error
