"""The agent's adapter files on disk: fetched from a gateway by digest, checked, kept, evicted.

`<folder>/<digest>/` holds an adapter's two files and is never changed: it is renamed into place
complete and with the right SHA-256s, or not at all, so a path handed out has the right content for
as long as it is pinned. What a crash left incomplete is under `.incoming` or lacks a file, and is
deleted at the next start; what was there before the start is hashed once more at its first use.

Files for requests that still wait for their turn are fetched `ahead`, and take no room from those
in use. So a flood of requests for many adapters fills neither the disk nor the network for others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4
from weakref import WeakValueDictionary

import httpx
import structlog

from inference.agent.adapters.disk import DiskIndex, NoRoom
from inference.content import CONFIG, FILES, TICKET_HEADER, WEIGHTS, digest_of
from inference.errors import AdapterUnavailable
from inference.link.engine_info import AdapterRef

log = structlog.get_logger(__name__)

CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 5.0
STALL_TIMEOUT_S = 30.0
"""Without a byte; a download of any length goes on for as long as bytes come."""
DOWNLOADS_PER_TENANT = 4
"""At a time, so that no tenant's adapters hold up those of another."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_INCOMING = ".incoming"


@dataclass(frozen=True, slots=True)
class Download:
    """A file being downloaded: `size` in bytes as announced, and its content in chunks."""

    size: int
    chunks: AsyncIterator[bytes]


class FetchFailed(Exception):
    """The file could not be fetched; the message says why."""


class Fetch(Protocol):
    """Opens a download; `ticket` is the adapter's (`AdapterRef.ticket`).

    Raises:
        FetchFailed: on entering the context, or while the chunks are read.
    """

    def __call__(self, url: str, ticket: str) -> AbstractAsyncContextManager[Download]: ...


class HttpFetch:
    """Fetch over HTTP with the engine's credential."""

    def __init__(self, credential: str) -> None:
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {credential}"},
            timeout=httpx.Timeout(STALL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,  # gateways are near: never through a proxy
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def __call__(self, url: str, ticket: str) -> AsyncIterator[Download]:
        try:
            async with contextlib.aclosing(await self._answer(url, ticket)) as response:
                if response.status_code != 200:
                    raise FetchFailed(f"{url} answered {response.status_code}")
                length = response.headers.get("content-length", "")
                if not length.isdigit():
                    raise FetchFailed(f"{url} has no Content-Length")
                yield Download(int(length), response.aiter_raw(CHUNK_BYTES))
        except httpx.HTTPError as error:
            raise FetchFailed(f"{url}: {str(error) or type(error).__name__}") from error

    async def _answer(self, url: str, ticket: str) -> httpx.Response:
        """The response, its body not read yet.

        Raises:
            httpx.HTTPError: there is no response.
            FetchFailed: the connection was reset at once.
        """
        try:
            request = self._client.build_request("GET", url, headers={TICKET_HEADER: ticket})
            return await self._client.send(request, stream=True)
        except AttributeError as error:  # httpcore asks for a socket that uvloop has dropped
            raise FetchFailed(f"{url}: the connection was reset at once") from error


class AdapterStore:
    """The cache. Use as an async context manager; belongs to one event loop and one process."""

    def __init__(self, folder: Path, budget_bytes: int, fetch: Fetch) -> None:
        """`budget_bytes` bounds all files together, including those being downloaded."""
        self._folder = folder.resolve()
        self._index = DiskIndex(budget_bytes)
        self._fetch = fetch
        self._verified: set[str] = set()
        self._flights: dict[str, asyncio.Task[Path]] = {}
        self._downloads: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By tenant."""
        self._awaited: Counter[str] = Counter()
        """How many requests wait for their turn with each adapter."""

    async def __aenter__(self) -> AdapterStore:
        """Take over what an earlier process left complete; delete the rest."""
        await asyncio.to_thread(self._take_over)
        return self

    async def __aexit__(self, *_: object) -> None:
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    @asynccontextmanager
    async def ahead(self, ref: AdapterRef, source: str) -> AsyncIterator[None]:
        """Fetch the adapter's files, if there is room for them beside all that is pinned or
        `ahead`. They stay inside the context, unless a pinned adapter needs their room.

        Raises:
            AdapterUnavailable: as `get`, except for lack of room.
        """
        self._awaited[ref.digest] += 1
        try:
            try:
                await self.get(ref, source)
            except AdapterUnavailable as error:
                if not isinstance(error.__cause__, NoRoom):
                    raise
            yield
        finally:
            self._awaited[ref.digest] -= 1
            if not self._awaited[ref.digest]:
                del self._awaited[ref.digest]

    @asynccontextmanager
    async def pinned(self, ref: AdapterRef, source: str) -> AsyncIterator[Path]:
        """The folder of the adapter's files, which stay there inside the context.

        Raises:
            AdapterUnavailable: as `get`.
        """
        self._index.pin(ref.digest)
        try:
            yield await self.get(ref, source)
        finally:
            self._index.unpin(ref.digest)

    async def get(self, ref: AdapterRef, source: str) -> Path:
        """The folder of the adapter's files, fetched from the gateway at the base URL `source` if
        need be; concurrent callers share one download. Pin it to keep it.

        Raises:
            AdapterUnavailable: the gateway, what it sent, or this disk is at fault.
        """
        if (home := self._at_hand(ref.digest)) is not None:
            return home
        flight = self._flights.get(ref.digest)
        if flight is None:
            flight = asyncio.create_task(self._provide(ref, source), name=f"fetch {ref.name}")
            self._flights[ref.digest] = flight
            flight.add_done_callback(lambda done: self._landed(ref.digest, done))
        return await asyncio.shield(flight)  # cancelling one caller must not end the others

    def _landed(self, digest: str, flight: asyncio.Task[Path]) -> None:
        del self._flights[digest]
        if not flight.cancelled():
            flight.exception()  # retrieved, even if every caller has gone

    async def _provide(self, ref: AdapterRef, source: str) -> Path:
        home = self._folder / ref.digest
        tenant = ref.name.partition("/")[0]
        downloads = self._downloads.setdefault(tenant, asyncio.Semaphore(DOWNLOADS_PER_TENANT))
        try:
            if ref.digest not in self._index or not await self._verify(ref):
                async with downloads:
                    await self._download(ref, source)
        except (FetchFailed, NoRoom, OSError) as error:
            raise AdapterUnavailable(
                f"The files of the adapter {ref.name} cannot be transferred to the engine: {error}"
            ) from error
        return home

    # --- downloads -------------------------------------------------------------------------------

    async def _download(self, ref: AdapterRef, source: str) -> None:
        incoming = self._folder / _INCOMING / f"{ref.digest}-{uuid4().hex}"
        try:
            incoming.mkdir(parents=True)
            hashes = {}
            reserved = 0
            for name in FILES:
                url = f"{source.rstrip('/')}/engine/adapters/{ref.digest}/{name}"
                async with self._fetch(url, ref.ticket) as download:
                    reserved += download.size
                    await self._make_room(ref.digest, reserved)
                    hashes[name] = await _write(incoming / name, download)
            if digest_of(hashes[CONFIG], hashes[WEIGHTS]) != ref.digest:
                raise FetchFailed(
                    f"the content that {source} sent does not have the digest {ref.digest}"
                )
            await asyncio.to_thread(_put_in_place, incoming, self._folder / ref.digest)
        except BaseException:
            self._forget(ref.digest)
            # Not awaited in a thread: a cancelled task must not leave files behind.
            _remove(incoming)
            raise
        self._verified.add(ref.digest)
        log.info("adapter_fetched", adapter=ref.name, size_bytes=reserved)

    async def _make_room(self, digest: str, size: int) -> None:
        """Evict what `_reserve` chooses. All victims are gone from the index at once, so all are
        out of sight before anything is awaited: any of them may be asked for meanwhile."""
        victims = self._reserve(digest, size)
        self._verified.difference_update(victims)
        graves = [self._out_of_sight(victim) for victim in victims]
        for victim, grave in zip(victims, graves, strict=True):
            await asyncio.to_thread(_remove, grave)
            log.info("adapter_evicted", digest=victim)

    def _reserve(self, digest: str, size: int) -> list[str]:
        """Downloads in progress are never evicted; what is `ahead`, only for a pinned adapter."""
        try:
            return self._index.reserve(digest, size, kept={*self._flights, *self._awaited})
        except NoRoom:
            if not self._index.pinned(digest):
                raise
            return self._index.reserve(digest, size, kept=self._flights)

    def _out_of_sight(self, digest: str) -> Path:
        """Move an evicted folder away in one step, so that a task that fetches the adapter again
        finds its place free. Returns the folder's new path."""
        grave = self._folder / _INCOMING / f"evicted-{uuid4().hex}"
        home = self._folder / digest
        with contextlib.suppress(FileNotFoundError):
            home.chmod(0o700)  # a folder that is moved elsewhere must be writable
            home.rename(grave)
        return grave

    # --- what is there ---------------------------------------------------------------------------

    def _take_over(self) -> None:
        _remove(self._folder / _INCOMING)
        (self._folder / _INCOMING).mkdir(parents=True)
        for home in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime):
            if not _DIGEST.fullmatch(home.name):
                continue
            try:
                size = _size(home)
                victims = [home.name] if size is None else self._index.reserve(home.name, size)
            except NoRoom:
                victims = [home.name]
            for victim in victims:
                _remove(self._out_of_sight(victim))

    def _at_hand(self, digest: str) -> Path | None:
        """The folder of an adapter that is here and was verified, else None. Takes microseconds."""
        if digest not in self._verified:
            return None
        home = self._folder / digest
        if _size(home) != self._index.size_of(digest):  # the files were deleted or cut
            log.warning("adapter_files_damaged", digest=digest)
            self._forget(digest)
            return None
        self._index.touch(digest)
        os.utime(home)  # the next process takes them over in this order
        return home

    async def _verify(self, ref: AdapterRef) -> bool:
        """Whether what an earlier process left has the right content; else it is forgotten."""
        home = self._folder / ref.digest
        hashes = await asyncio.to_thread(lambda: [_sha256(home / name) for name in FILES])
        if digest_of(*hashes) == ref.digest:
            self._verified.add(ref.digest)
            return True
        log.warning("adapter_files_damaged", digest=ref.digest)
        self._forget(ref.digest)
        return False

    def _forget(self, digest: str) -> None:
        self._verified.discard(digest)
        self._index.drop(digest)


async def _write(path: Path, download: Download) -> str:
    """Write the download to the path, durably and read-only; returns its SHA-256.

    Raises:
        FetchFailed: it is not as long as announced.
    """
    hashed = hashlib.sha256()
    left = download.size

    def write(chunk: bytes) -> None:
        hashed.update(chunk)
        file.write(chunk)

    # Opened here, not in a thread: a cancelled task could not close what the thread still opens.
    with path.open("xb") as file:
        async for chunk in download.chunks:
            left -= len(chunk)
            if left < 0:
                break
            await asyncio.to_thread(write, chunk)
        if left:
            raise FetchFailed(
                f"{path.name} does not have the {download.size} bytes that were announced"
            )
        await asyncio.to_thread(_seal, file.fileno(), file.flush)
    return hashed.hexdigest()


def _seal(descriptor: int, flush: Callable[[], None]) -> None:
    flush()
    os.fchmod(descriptor, 0o400)
    os.fsync(descriptor)


def _put_in_place(incoming: Path, home: Path) -> None:
    """Rename the finished folder into place, durably; a damaged one there is deleted first."""
    _remove(home)
    incoming.rename(home)
    home.chmod(0o500)
    for folder in (home, home.parent):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    """Delete the folder; no error if it is gone. Read-only folders are made writable first."""
    for path in [folder, *folder.glob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _size(home: Path) -> int | None:
    """The size of both files in bytes; None if one is missing."""
    try:
        return sum((home / name).stat().st_size for name in FILES)
    except FileNotFoundError:
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
