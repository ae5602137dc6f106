"""The adapters on one engine: loaded when first needed, unloaded when `Slots` says so."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from inference.agent.engines.engine import Engine, LoadReport, LocalAdapter
from inference.agent.scheduler.slots import Slots
from inference.errors import InferenceError
from inference.link.engine_info import AdapterRef
from inference.process.supervision import in_background

log = structlog.get_logger(__name__)


class ResidencyStore(Protocol):
    """The files of adapters on this machine."""

    def ahead(self, ref: AdapterRef, source: str) -> AbstractAsyncContextManager[None]:
        """Fetch the files before `pinned` needs them, if there is room.

        Raises:
            AdapterLoadFailed: they cannot be fetched.
        """
        ...

    def pinned(self, ref: AdapterRef, source: str) -> AbstractAsyncContextManager[Path]:
        """The folder with the checked files of this version, kept while in use.

        Fetched from the gateway `source` (a base URL) if need be.

        Raises:
            AdapterLoadFailed: they cannot be fetched.
        """
        ...


@dataclass(slots=True)
class Resident:
    """An adapter on the engine; `pin` keeps its files on disk while it is loaded.

    `names` are all names under which it was requested: tenants with the same content share it.
    """

    adapter: LocalAdapter
    report: LoadReport
    pin: AsyncExitStack
    names: dict[str, None]


class Residency:
    """The loaded adapters. One load or unload at a time: the engine's loop runs them one by one
    anyway, and evictions are then decided on the actual state."""

    def __init__(
        self, engine: Engine, store: ResidencyStore, slots: Slots, changed: Callable[[], None]
    ) -> None:
        """`changed` is called after each load or unload."""
        self._engine, self._store, self._slots, self._changed = engine, store, slots, changed
        self._loaded: dict[str, Resident] = {}
        self._turn = asyncio.Lock()
        self._int_ids = itertools.count(1)
        self._background: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> list[str]:
        """LoRA names of what is loaded, least recently used first."""
        return [
            name
            for digest in self._slots.resident
            if digest in self._loaded
            for name in self._loaded[digest].names
        ]

    async def adapter(self, ref: AdapterRef, source: str) -> Resident:
        """The adapter, loaded on the engine if it is not there yet.

        Raises:
            AdapterLoadFailed: it cannot be fetched or loaded.
        """
        if (resident := self._loaded.get(ref.digest)) is None:
            async with self._turn:
                resident = self._loaded.get(ref.digest) or await self._load(ref, source)
        self._slots.loaded(ref.digest)
        if ref.name not in resident.names:
            resident.names[ref.name] = None
            self._changed()
        return resident

    def pin(self, refs: Sequence[AdapterRef], source: str) -> None:
        """Pin these alone, as an operator asks; the missing ones are loaded in the background."""
        self._slots.pin([ref.digest for ref in refs])
        in_background(self._background, self.keep(refs, source))

    def retire(self, digest: str) -> None:
        """Unload this version, in the background, once no request uses it."""
        self._slots.retire(digest)
        in_background(self._background, self.unload_retired())

    def released(self) -> None:
        """A request has ended: unload, in the background, what was retired and is unused by now."""
        if self._slots.to_retire():
            in_background(self._background, self.unload_retired())

    async def keep(self, refs: Iterable[AdapterRef], source: str) -> None:
        """Load the operator's pins that are missing, as far as there is room."""
        for ref in refs:
            if ref.digest in self._slots.missing_pins():
                try:
                    await self._keep(ref, source)
                except InferenceError as error:
                    log.warning("pin_not_loaded", adapter=ref.name, error=error.message)

    async def unload_retired(self) -> None:
        """Unload what was retired and is unused by now."""
        async with self._turn:
            while retired := self._slots.to_retire():  # asked again: one may be in use by now
                await self._unload(retired[0])
        self._changed()

    async def _keep(self, ref: AdapterRef, source: str) -> None:
        """Fetch before taking the lock, so that no other load waits for these files."""
        async with self._store.pinned(ref, source), self._turn:
            if ref.digest in self._slots.missing_pins():
                await self._load(ref, source)

    async def _load(self, ref: AdapterRef, source: str) -> Resident:
        for digest in self._slots.to_evict(ref.digest):
            await self._unload(digest)
        async with AsyncExitStack() as stack:
            path = await stack.enter_async_context(self._store.pinned(ref, source))
            adapter = LocalAdapter(ref, next(self._int_ids), path)
            report = await self._engine.load(adapter)
            resident = Resident(adapter, report, stack.pop_all(), {ref.name: None})
        self._loaded[ref.digest] = resident
        self._slots.loaded(ref.digest)
        log.info("adapter_loaded", adapter=ref.name, load_s=round(report.load_s, 3))
        self._changed()
        return resident

    async def _unload(self, digest: str) -> None:
        self._slots.unloaded(digest)
        if resident := self._loaded.pop(digest, None):
            try:
                await self._engine.unload(resident.adapter)
            finally:  # also when the request that needed its slot was cancelled meanwhile
                await resident.pin.aclose()
            log.info("adapter_unloaded", adapter=resident.adapter.ref.name)
