"""Loading and unloading of adapters when the request that needs one is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inference.agent.adapters.residency import Residency
from inference.agent.engines.engine import LocalAdapter
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.agent.scheduler.slots import Slots
from inference.link.engine_info import AdapterRef
from tests.inference.rig import Folders
from tests.inference.samples import MODEL

FIRST, SECOND = (AdapterRef(f"acme/{i}@{i:064x}", f"{i:064x}") for i in (1, 2))


class SlowToUnload(SyntheticEngine):
    """Finishes an unload only once `may_unload` is set."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.unloading, self.may_unload = asyncio.Event(), asyncio.Event()

    async def unload(self, adapter: LocalAdapter) -> None:
        self.unloading.set()
        await self.may_unload.wait()
        await super().unload(adapter)


class SlowToFetch(Folders):
    """Has the files of all adapters except `late`, whose files arrive once `may_arrive` is set."""

    def __init__(self, root: Path, late: AdapterRef) -> None:
        super().__init__(root)
        self._late = late
        self.fetching, self.may_arrive = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def pinned(self, ref: AdapterRef, source: str) -> AsyncIterator[Path]:
        if ref == self._late:
            self.fetching.set()
            await self.may_arrive.wait()
        async with super().pinned(ref, source) as path:
            yield path


async def test_no_request_waits_for_the_files_of_what_an_operator_pinned(tmp_path: Path) -> None:
    store, slots = SlowToFetch(tmp_path, FIRST), Slots(active=1, resident=3)
    residency = Residency(SyntheticEngine(MODEL), store, slots, lambda: None)
    slots.pin([FIRST.digest])
    keeping = asyncio.create_task(residency.keep([FIRST, SECOND], ""))
    await store.fetching.wait()
    async with asyncio.timeout(10):
        await residency.adapter(SECOND, "")
    store.may_arrive.set()
    await keeping
    assert sorted(residency.names) == sorted([FIRST.name, SECOND.name])
    assert store.pins == {FIRST.digest: 1, SECOND.digest: 1}


async def test_files_of_an_evicted_adapter_are_released_even_if_the_load_is_cancelled(
    tmp_path: Path,
) -> None:
    store, engine = Folders(tmp_path), SlowToUnload()
    residency = Residency(engine, store, Slots(active=1, resident=1), lambda: None)
    await residency.adapter(FIRST, "")
    asked = asyncio.create_task(residency.adapter(SECOND, ""))
    await engine.unloading.wait()
    asked.cancel()
    engine.may_unload.set()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not any(store.pins.values())
    await residency.adapter(SECOND, "")
    assert [digest for digest, pins in store.pins.items() if pins] == [SECOND.digest]


async def test_a_retired_adapter_stays_for_a_request_that_starts_meanwhile(
    tmp_path: Path,
) -> None:
    engine, slots = SlowToUnload(), Slots(active=2, resident=2)
    residency = Residency(engine, Folders(tmp_path), slots, lambda: None)
    for ref in (FIRST, SECOND):
        await residency.adapter(ref, "")
        slots.retire(ref.digest)
    unloading = asyncio.create_task(residency.unload_retired())
    await engine.unloading.wait()
    (waits,) = slots.resident
    slots.start(waits)
    engine.may_unload.set()
    await unloading
    assert slots.resident == [waits]
    slots.finish(waits)
    await residency.unload_retired()
    assert slots.resident == []
