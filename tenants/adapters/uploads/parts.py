"""The bytes of an upload until it is a version.

Each file of an upload is a row of chunks. A chunk is stored first and gets its row only if the file
still ends where the chunk begins: so if two requests send the same bytes, even to different
consoles, one adds them and the other is refused. A console that is killed loses at most the chunk
that it was receiving.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self
from uuid import UUID

from channels.db import database_sync_to_async
from django.core.files.storage import storages
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile
from django.db import transaction
from django.db.models import F, Max, QuerySet

from inference.content import WEIGHTS
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.models import UploadChunk, UploadSession
from tenants.storage import opened, scratch, store

PLACE = "uploads"
ONLY = ""
"""The name of the file of an upload that has one: an archive, a commit, or an object of the hub."""
CHUNK_BYTES = 16 << 20
SLOW_CHUNK_BYTES, SLOW_CHUNK_S = 256 << 10, 5.0
"""A chunk that takes longer is kept once it has so many bytes."""
MAX_CHUNKS = 10_000
"""Of one file."""
COPY_BYTES = 1 << 20


class OffsetMoved(Exception):
    """Another request has written meanwhile; the argument is where the file now ends."""


class UploadGone(Exception):
    """The upload was completed or given up meanwhile."""


def size(id: UUID) -> int:
    """How many bytes of the upload's only file have arrived."""
    chunks = UploadChunk.objects.filter(upload=id, file=ONLY)
    found: int | None = chunks.aggregate(end=Max(F("offset") + F("size_bytes")))["end"]
    return found or 0


def stored(id: UUID, files: Mapping[str, UploadedFile[bytes]]) -> list[UploadChunk]:
    """Store a request's files, by the names that an upload gives them; no row is saved yet."""
    kept: list[UploadChunk] = []
    try:
        for name, file in files.items():
            assert isinstance(file, TemporaryUploadedFile), "see FILE_UPLOAD_HANDLERS"
            assert file.file is not None
            kept.append(_stored(id, name, 0, file.size or 0, file.file))
    except BaseException:
        remove_bytes(one.pk for one in kept)
        raise
    return kept


def _stored(id: UUID, name: str, offset: int, size_bytes: int, file: IO[bytes]) -> UploadChunk:
    chunk = UploadChunk(upload_id=id, file=name, offset=offset, size_bytes=size_bytes)
    store(PLACE, chunk.pk, file)
    return chunk


def fetch(id: UUID, name: str, target: Path) -> None:
    """Write what has arrived of an upload's file to the path `target`.

    Raises:
        FileNotFoundError: a chunk is missing in the storage.
    """
    with target.open("wb") as whole:
        for chunk in UploadChunk.objects.filter(upload=id, file=name).order_by("offset"):
            with opened(PLACE, chunk.pk) as part:
                shutil.copyfileobj(part, whole, COPY_BYTES)


def restart(id: UUID) -> None:
    """Delete what has arrived of the only file; another writer of it then finds that it has moved.

    Raises:
        UploadGone: see there.
    """
    with transaction.atomic():
        _lock(id)
        old = _forget(UploadChunk.objects.filter(upload=id, file=ONLY))
    remove_bytes(old)


def take_weights(session: UploadSession, of: UploadSession) -> bool:
    """Make the only file of one upload the weights `of` another, and end the one; false if it has
    not arrived completely."""
    with transaction.atomic():
        try:
            _lock(session.pk)
        except UploadGone:
            return False
        if size(session.pk) != session.length_bytes:
            return False
        session.chunks.update(upload=of, file=WEIGHTS)
        session.delete()
    return True


def has(id: UUID, name: str) -> bool:
    return UploadChunk.objects.filter(upload=id, file=name).exists()


def remove(id: UUID) -> None:
    """Delete what has arrived of an upload."""
    remove_bytes(_forget(UploadChunk.objects.filter(upload=id)))


def _forget(chunks: QuerySet[UploadChunk]) -> list[str]:
    """Delete the rows of these chunks; returns their ids."""
    ids = list(chunks.values_list("pk", flat=True))
    UploadChunk.objects.filter(pk__in=ids).delete()
    return ids


def remove_bytes(ids: Iterable[str]) -> None:
    """Delete the stored bytes of chunks without rows."""
    for id in ids:
        storages[PLACE].delete(id)


def discard(session: UploadSession) -> None:
    """Delete an upload and what has arrived of it. A version that it became stays."""
    with transaction.atomic():
        UploadSession.objects.select_for_update().filter(pk=session.pk).first()  # as writers do
        old = _forget(session.chunks.all())
        session.delete()
    remove_bytes(old)


class Writer:
    """Appends to an upload's only file from `offset` on; a context manager."""

    def __init__(self, id: UUID, offset: int) -> None:
        self.offset = offset
        self._id, self._kept = id, offset
        self._scratch = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.close()

    async def append(self, data: bytes) -> None:
        """Write all of `data` at `offset`, and move `offset` on.

        Raises:
            OffsetMoved, UploadGone, UploadRefused, OSError: see `keep`.
        """
        if self.offset == self._kept:
            self._file, self._since = self._scratch.enter_context(scratch()), time.monotonic()
        await asyncio.to_thread(self._file.write, data)
        self.offset += len(data)
        slow = time.monotonic() - self._since >= SLOW_CHUNK_S
        if self.offset - self._kept >= (SLOW_CHUNK_BYTES if slow else CHUNK_BYTES):
            await self.keep()

    async def keep(self) -> None:
        """Make everything that was appended durable.

        Raises:
            OffsetMoved: the file does not end where this writer began or went on.
            UploadGone: see there.
            UploadRefused: the file has arrived in too many pieces.
            OSError: the disk is full, for example.
        """
        if size := self.offset - self._kept:
            chunk = await asyncio.to_thread(_stored, self._id, ONLY, self._kept, size, self._file)
            await database_sync_to_async(_add)(chunk)
            self._kept = self.offset
            self._scratch.close()


def _add(chunk: UploadChunk) -> None:
    try:
        with transaction.atomic():
            session = _lock(chunk.upload_id)
            if (end := size(session.pk)) != chunk.offset:
                raise OffsetMoved(end)
            if session.chunks.count() >= MAX_CHUNKS:
                raise UploadRefused(
                    UploadRefusal.TOO_MANY_PIECES,
                    f"The upload was sent in {MAX_CHUNKS} pieces, the maximum. Begin again with "
                    "larger ones.",
                )
            chunk.save(force_insert=True)
    except BaseException:
        remove_bytes([chunk.pk])
        raise


def _lock(id: UUID) -> UploadSession:
    """The upload, whose chunks nobody else changes until the end of the transaction."""
    receiving = UploadSession.objects.select_for_update().filter(pk=id, received_at=None)
    session = receiving.first()
    if session is None:
        raise UploadGone(id)
    return session
