"""A slow disk delays no stream: only the journal's next file waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.agent.journal.files import FILE, NEXT_FILE
from tests.inference.rig import agent_on, chat, gateway, until
from tests.inference.samples import MODEL

T = TypeVar("T")
ROTATE_BYTES = 4000
"""A file is full after a few requests."""


class HeldDisk(ThreadPoolExecutor):
    """An executor whose thread does nothing until it is released."""

    def __init__(self) -> None:
        super().__init__(1)
        self.free = threading.Event()
        self.asked = 0

    def submit(self, call: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        self.asked += 1
        return super().submit(self._wait, call, *arguments, **named)

    def _wait(self, call: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
        self.free.wait()
        return call(*arguments, **named)


@pytest.fixture
def disk() -> Iterator[HeldDisk]:
    disk = HeldDisk()
    yield disk
    disk.free.set()
    disk.shutdown()


async def test_streams_and_bills_go_on_while_the_disk_is_waited_for(
    tmp_path: Path, disk: HeldDisk
) -> None:
    engine, folder = SyntheticEngine(MODEL), tmp_path / "journal"
    options = {"rotate_bytes": ROTATE_BYTES, "executor": disk}
    async with gateway() as one, agent_on(engine, tmp_path, [one], journal=options) as rig:
        first, asked = (folder / FILE).stat().st_ino, 0
        async with one.client() as client:

            async def ask() -> None:
                nonlocal asked
                answer = await client.post("/v1/chat/completions", json=chat(stream=True))
                assert answer.text.endswith("data: [DONE]\n\n")
                asked += 1

            while not disk.asked:
                await ask()
            for _ in range(5):
                await ask()
            await one.ledger.settled(asked)
            await until(lambda: not rig.agent.reports.stats().unbilled.requests)
            assert (folder / FILE).stat().st_ino == first and disk.asked == 1
            disk.free.set()
            await until(lambda: (folder / FILE).stat().st_ino != first)
            await ask()
            await one.ledger.settled(asked)
            assert rig.agent.reports.stats().journaled.requests == asked
        await until(lambda: not (folder / NEXT_FILE).exists())
    await engine.close()
