"""While the database is down, answers wait in a worker's memory, up to a number of bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
from django.db import DatabaseError
from django.utils import timezone

from inference.gateway.lines.frames import MAX_UNBEGUN, AskLine, LineAnswer, LineMessage, OpenBatch
from inference.operations.chat import CHAT
from tenants.batch_states import Status
from tenants.batches import runner
from tenants.batches.batch_leases import BatchLease
from tenants.batches.leases import Lease, Result
from tenants.batches.runner import MAX_RESULT_BYTES, RunningBatch
from tests.inference.operations.examples import EXAMPLES
from tests.inference.rig import HANGS_S
from tests.storing import make_bytes

T = TypeVar("T")
FILE = "file-" + "0" * 24
GATEWAY = "http://gateway"
LINES = MAX_UNBEGUN + 10
HALF = bytes(MAX_RESULT_BYTES // 2)


class Gateway:
    """Takes the place of the connections to gateways; records the lines sent to its only one."""

    open = (GATEWAY,)

    def __init__(self) -> None:
        self.asked: list[AskLine] = []

    def post(self, gateway: str, message: LineMessage) -> None:
        if isinstance(message, AskLine):
            self.asked.append(message)


class Database:
    """Takes the place of the runner's threads: records written answers unless it is `away`."""

    def __init__(self) -> None:
        self.away = True
        self.refused = 0
        self.written: list[Result] = []

    async def in_thread(self, function: Callable[[], T]) -> T:
        if not isinstance(function, partial) or function.func.__name__ != "renew":
            return function()
        if self.away:
            self.refused += 1
            raise DatabaseError("away")
        self.written += function.args[0]
        return Status.IN_PROGRESS  # type: ignore[return-value]


@pytest.fixture
def lease() -> Lease:
    body = EXAMPLES["chat"].body()
    line = {"method": "POST", "url": CHAT.path, "body": body}
    content = [json.dumps(line | {"custom_id": str(number)}) for number in range(LINES)]
    make_bytes(FILE, "\n".join(content).encode())
    opening = OpenBatch("batch_1", 1, 0.0, CHAT.name, "")
    return BatchLease(opening, 1, timezone.now() + timedelta(hours=1), file_id=FILE)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(HANGS_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_nothing_is_sent_while_too_many_bytes_are_unwritten(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.01)
    gateway, database = Gateway(), Database()
    running = RunningBatch(database, gateway, lease)  # type: ignore[arg-type]
    task = asyncio.create_task(running.run())

    def answer(*asked: AskLine) -> None:
        for one in asked:
            running.answered(GATEWAY, LineAnswer(lease.id, one.number, 200, HALF))

    try:
        await until(lambda: len(gateway.asked) == MAX_UNBEGUN)
        answer(gateway.asked[0])
        await until(lambda: len(gateway.asked) == MAX_UNBEGUN + 1)
        answer(gateway.asked[1])
        refused = database.refused
        await until(lambda: database.refused >= refused + 3)
        assert len(gateway.asked) == MAX_UNBEGUN + 1, "there is room for another line"
        assert len(running.results) == 2 and not database.written
        database.away = False
        await until(lambda: len(gateway.asked) == MAX_UNBEGUN + 2)
        assert [len(one.body) for one in database.written] == 2 * [len(HALF)]
        assert not running.results
    finally:
        task.cancel()
        await asyncio.wait([task])
