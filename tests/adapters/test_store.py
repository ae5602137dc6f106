"""The agent's adapter files: fetched once, checked, kept while used, evicted, repaired."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import structs

from inference.agent.adapters.store import (
    DOWNLOADS_PER_TENANT,
    AdapterStore,
    Download,
    FetchFailed,
    HttpFetch,
)
from inference.content import CONFIG, FILES, WEIGHTS, digest_of
from inference.errors import AdapterLoadFailed, AdapterUnavailable
from inference.link.engine_info import AdapterRef
from tests.adapters.servers import Responder, serving

SOURCE = "http://gateway"


def content(seed: str, size: int = 100) -> dict[str, bytes]:
    return {CONFIG: f"config {seed}".encode(), WEIGHTS: (seed * size).encode()[:size]}


def ref_of(files: dict[str, bytes]) -> AdapterRef:
    digest = digest_of(*(hashlib.sha256(files[name]).hexdigest() for name in FILES))
    return AdapterRef(f"acme/one@{digest}", digest)


@dataclass
class Gateway:
    """The Fetch of tests, which serves from memory. `hold` delays downloads of the files `held`,
    `spoil` changes their content."""

    adapters: dict[str, dict[str, bytes]] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    hold: asyncio.Event | None = None
    held: Collection[str] = FILES
    spoil: Callable[[str, bytes], tuple[int, list[bytes]]] | None = None
    asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released once for each download that begins."""

    def add(self, files: dict[str, bytes]) -> AdapterRef:
        ref = ref_of(files)
        self.adapters[ref.digest] = files
        return ref

    @asynccontextmanager
    async def __call__(self, url: str, ticket: str) -> AsyncIterator[Download]:
        assert url.startswith(f"{SOURCE}/engine/adapters/")
        digest, name = url.split("/")[-2:]
        self.fetched.append(f"{digest[:4]}/{name}")
        self.asked.release()
        if digest not in self.adapters:
            raise FetchFailed(f"{url} answered 404")
        data = self.adapters[digest][name]
        size, chunks = self.spoil(name, data) if self.spoil else (len(data), [data])
        yield Download(size, self._chunks(name, chunks))

    async def _chunks(self, name: str, chunks: list[bytes]) -> AsyncIterator[bytes]:
        for chunk in chunks:
            if self.hold and name in self.held:
                await self.hold.wait()
            yield chunk


def on_disk(folder: Path) -> set[str]:
    """The adapters in the cache folder; fails if an incomplete download is left."""
    assert not list((folder / ".incoming").iterdir())
    return {path.name for path in folder.iterdir()} - {".incoming"}


async def test_fetched_once_and_read_only(tmp_path: Path) -> None:
    gateway = Gateway()
    ref = gateway.add(content("a"))
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        path = await store.get(ref, SOURCE)
        assert path == tmp_path / ref.digest
        assert {f.name: f.read_bytes() for f in path.iterdir()} == content("a")
        assert all(f.stat().st_mode & 0o222 == 0 for f in [path, *path.iterdir()])
        assert await store.get(ref, SOURCE) == path
        assert len(gateway.fetched) == 2
        assert on_disk(tmp_path) == {ref.digest}


async def test_many_ask_at_once_one_download(tmp_path: Path) -> None:
    gateway = Gateway(hold=asyncio.Event())
    ref = gateway.add(content("a"))
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        asking = [asyncio.create_task(store.get(ref, SOURCE)) for _ in range(5)]
        await gateway.asked.acquire()
        asking[0].cancel()
        assert gateway.hold
        gateway.hold.set()
        done = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert set(done[1:]) == {tmp_path / ref.digest}
        assert len(gateway.fetched) == 2


async def test_least_recently_used_is_evicted_unless_pinned(tmp_path: Path) -> None:
    gateway = Gateway()
    a, b, c = (gateway.add(content(seed)) for seed in "abc")
    async with AdapterStore(tmp_path, 250, gateway) as store:
        async with store.pinned(a, SOURCE) as path:
            await store.get(b, SOURCE)
            await store.get(c, SOURCE)
            assert on_disk(tmp_path) == {a.digest, c.digest}
            assert (path / WEIGHTS).read_bytes() == content("a")[WEIGHTS]
        await store.get(b, SOURCE)
        assert on_disk(tmp_path) == {b.digest, c.digest}


async def test_a_victim_asked_for_while_others_are_deleted_is_fetched_again(tmp_path: Path) -> None:
    gateway = Gateway()
    a, b, c = (gateway.add(content(seed, size)) for seed, size in (("a", 90), ("b", 10), ("c", 90)))
    large = gateway.add({CONFIG: b"x" * 180, WEIGHTS: b"x"})
    loop, release = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    async with AdapterStore(tmp_path, 250, gateway) as store:
        for ref in (a, b, c):
            await store.get(ref, SOURCE)
        blocked = loop.run_in_executor(None, release.wait)
        gateway.asked = asyncio.Semaphore(0)
        asking = asyncio.create_task(store.get(large, SOURCE))
        await gateway.asked.acquire()  # now the deletion of the first of three victims waits
        again = asyncio.create_task(store.get(b, SOURCE))
        release.set()
        await asyncio.gather(blocked, asking, again)
        assert on_disk(tmp_path) == {large.digest, b.digest}


async def test_no_room_beside_what_is_pinned(tmp_path: Path) -> None:
    gateway = Gateway()
    a, b = (gateway.add(content(seed)) for seed in "ab")
    async with AdapterStore(tmp_path, 150, gateway) as store:
        async with store.pinned(a, SOURCE):
            with pytest.raises(AdapterUnavailable, match="do not fit"):
                await store.get(b, SOURCE)
            assert on_disk(tmp_path) == {a.digest}
        await store.get(b, SOURCE)


async def test_a_waiting_request_evicts_no_adapter_that_is_in_use(tmp_path: Path) -> None:
    gateway = Gateway()
    a, b, c = (gateway.add(content(seed)) for seed in "abc")
    async with AdapterStore(tmp_path, 250, gateway) as store:
        async with store.ahead(a, SOURCE), store.ahead(b, SOURCE):
            async with store.ahead(c, SOURCE):
                assert on_disk(tmp_path) == {a.digest, b.digest}
                async with store.pinned(c, SOURCE):
                    assert on_disk(tmp_path) == {b.digest, c.digest}
                    async with store.pinned(a, SOURCE):
                        assert on_disk(tmp_path) == {a.digest, c.digest}
        async with store.ahead(b, SOURCE):
            assert b.digest in on_disk(tmp_path), "nobody waits for the others any more"


async def test_a_failure_ahead_is_told_at_once(tmp_path: Path) -> None:
    async with AdapterStore(tmp_path, 150, Gateway()) as store:
        with pytest.raises(AdapterUnavailable, match="answered 404"):
            async with store.ahead(ref_of(content("unknown")), SOURCE):
                pass


async def test_a_tenant_has_few_downloads_at_a_time(tmp_path: Path) -> None:
    gateway = Gateway(hold=asyncio.Event())
    refs = [gateway.add(content(seed)) for seed in "abcdefgh"]
    other = gateway.add(content("o"))
    async with AdapterStore(tmp_path, 10_000, gateway) as store:
        asking = [asyncio.create_task(store.get(ref, SOURCE)) for ref in refs]
        asking.append(
            asyncio.create_task(store.get(structs.replace(other, name="globex/a"), SOURCE))
        )
        for _ in range(DOWNLOADS_PER_TENANT + 1):
            await gateway.asked.acquire()
        assert gateway.fetched[-1].startswith(other.digest[:4])
        assert len(gateway.fetched) == DOWNLOADS_PER_TENANT + 1
        assert gateway.hold
        gateway.hold.set()
        await asyncio.gather(*asking)
        assert len(on_disk(tmp_path)) == 9


async def test_downloads_under_way_do_not_evict_each_other(tmp_path: Path) -> None:
    gateway = Gateway(hold=asyncio.Event(), held=(WEIGHTS,))
    a, b = (gateway.add(content(seed)) for seed in "ab")
    async with AdapterStore(tmp_path, 150, gateway) as store:
        asking = [asyncio.create_task(store.get(ref, SOURCE)) for ref in (a, b)]
        refused, under_way = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(AdapterUnavailable, match="do not fit"):
            await refused.pop()
        assert gateway.hold
        gateway.hold.set()
        home = await under_way.pop()
        assert on_disk(tmp_path) == {home.name}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda name, data: (len(data), [data[:-1] + b"!"]), "does not have the digest"),
        (lambda name, data: (len(data), [data[:5]]), "does not have the"),
        (lambda name, data: (5, [data]), "does not have the"),
    ],
)
async def test_wrong_content_is_refused_and_leaves_nothing(
    tmp_path: Path, spoil: Callable[[str, bytes], tuple[int, list[bytes]]], reason: str
) -> None:
    gateway = Gateway(spoil=spoil)
    ref = gateway.add(content("a"))
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        with pytest.raises(AdapterLoadFailed, match=reason) as failed:
            await store.get(ref, SOURCE)
        assert failed.value.retryable
        assert on_disk(tmp_path) == set()
        gateway.spoil = None
        await store.get(ref, SOURCE)


async def test_unknown_to_the_gateway(tmp_path: Path) -> None:
    async with AdapterStore(tmp_path, 1000, Gateway()) as store:
        with pytest.raises(AdapterUnavailable, match="answered 404"):
            await store.get(ref_of(content("a")), SOURCE)


async def test_disk_error_is_a_load_failure(tmp_path: Path) -> None:
    gateway = Gateway()
    ref = gateway.add(content("a"))
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        (tmp_path / ".incoming").rmdir()
        (tmp_path / ".incoming").write_bytes(b"")
        with pytest.raises(AdapterUnavailable, match="Not a directory"):
            await store.get(ref, SOURCE)
        (tmp_path / ".incoming").unlink()
        await store.get(ref, SOURCE)


async def test_vanished_and_cut_files_are_fetched_again(tmp_path: Path) -> None:
    gateway = Gateway()
    ref = gateway.add(content("a"))
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        path = await store.get(ref, SOURCE)
        path.chmod(0o755)
        (path / CONFIG).unlink()
        await store.get(ref, SOURCE)
        (path / WEIGHTS).chmod(0o644)
        os.truncate(path / WEIGHTS, 10)
        assert await store.get(ref, SOURCE) == path
        assert (path / WEIGHTS).read_bytes() == content("a")[WEIGHTS]
        assert len(gateway.fetched) == 6


async def test_next_process_takes_over_what_is_sound(tmp_path: Path) -> None:
    gateway = Gateway()
    a, b, c = (gateway.add(content(seed)) for seed in "abc")
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        for age, ref in enumerate((a, b, c)):
            os.utime(await store.get(ref, SOURCE), (age, age))
    (tmp_path / b.digest).chmod(0o755)
    (tmp_path / b.digest / CONFIG).unlink()  # as after another kind of crash
    half = tmp_path / ".incoming" / "half"
    half.mkdir()
    (half / CONFIG).write_bytes(b"{")
    weights = tmp_path / c.digest / WEIGHTS
    weights.chmod(0o644)
    weights.write_bytes(b"x" * 100)  # the right size with wrong content
    gateway.fetched.clear()
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        assert on_disk(tmp_path) == {a.digest, c.digest}
        await store.get(a, SOURCE)
        assert not gateway.fetched
        await store.get(c, SOURCE)
        assert len(gateway.fetched) == 2
        assert weights.read_bytes() == content("c")[WEIGHTS]


async def test_next_process_with_a_smaller_budget_keeps_the_newest(tmp_path: Path) -> None:
    gateway = Gateway()
    refs = [gateway.add(content(seed)) for seed in "abc"]
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        for age, ref in enumerate(refs):
            os.utime(await store.get(ref, SOURCE), (age, age))
    async with AdapterStore(tmp_path, 120, gateway) as store:
        assert on_disk(tmp_path) == {refs[-1].digest}


async def test_closing_ends_downloads(tmp_path: Path) -> None:
    gateway = Gateway(hold=asyncio.Event())
    ref = gateway.add(content("a"))
    async with AdapterStore(tmp_path, 1000, gateway) as store:
        asking = asyncio.create_task(store.get(ref, SOURCE))
        await gateway.asked.acquire()
    assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], BaseException)
    assert on_disk(tmp_path) == set()


async def test_over_http(tmp_path: Path) -> None:
    files = content("a", 3_000_000)
    ref = ref_of(files)
    paths = {f"/engine/adapters/{ref.digest}/{name}": data for name, data in files.items()}
    server = Responder(
        lambda scope, body: (200, paths[scope["path"]]) if scope["path"] in paths else (404, b"")
    )
    fetch = HttpFetch("the-token")
    async with serving(server) as url, AdapterStore(tmp_path, 1 << 23, fetch) as store:
        path = await store.get(ref, url + "/")
        assert (path / WEIGHTS).read_bytes() == files[WEIGHTS]
        assert {headers[b"authorization"] for _, headers, _ in server.requests} == {
            b"Bearer the-token"
        }
        with pytest.raises(AdapterUnavailable, match="answered 404"):
            await store.get(ref_of(content("b")), url)
    async with AdapterStore(tmp_path, 1 << 23, fetch) as store:
        with pytest.raises(AdapterUnavailable, match="onnect"):
            await store.get(ref_of(content("b")), url)
    await fetch.aclose()
