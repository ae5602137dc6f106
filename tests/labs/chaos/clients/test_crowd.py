"""The clients against a gateway that is never killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inference.operations.operation import Operation
from inference.operations.registry import OPERATIONS
from tests.inference.rig import rig, until
from tests.inference.samples import MODEL
from tests.labs.chaos.clients.crowd import Crowd
from tests.labs.chaos.clients.customers import Customer
from tests.labs.chaos.judging.facts import Counts
from tests.labs.chaos.judging.sources.reading import READERS


@pytest.mark.parametrize("operation", [*OPERATIONS], ids=lambda one: one.name)
def test_every_operation_has_a_reader(operation: Operation) -> None:
    assert operation.name in READERS, "tell in tests/labs/chaos/judging/sources/reading.py"


def crowd(url: str) -> Crowd:
    return Crowd(
        [Customer("acme", 4, ("acme", "acme"), (MODEL.name,), MODEL.name)],
        {"gateway-0": url},
        is_ready=lambda name: True,
        four_letters=True,
    )


async def test_clients_note_what_the_engine_bills(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        clients = crowd(made.gateway.url)
        async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.run(seed=1, clients_each=8))
            while not clients.all_answered():  # noqa: ASYNC110
                await asyncio.sleep(0)
            clients.over.set()
        received = clients.received
        entries = made.gateway.ledger.entries
        await until(lambda: {one.id for one in received if one.id} <= set(entries))
        billed = {id: entry.usage for id, entry in entries.items()}
    assert {one.outcome for one in received} <= {"complete", "replayed", "client left"}
    assert {one.streams for one in received if one.complete} == {True, False}
    for one in received:
        if one.complete:
            usage = billed[one.id]
            assert one.tokens == usage.completion_tokens
            assert one.usage == Counts(
                usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
            )
        elif one.id:
            assert one.tokens <= billed[one.id].completion_tokens
