"""A gateway follows how many of the day's tokens are left for overflow engines."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from gateway.planes.monitoring import overflow
from inference.errors import Unavailable
from inference.gateway.routing.overflow import Overflow
from inference.link.workload import Workload
from tests.inference.played import Bench, benched
from tests.inference.rig import until
from tests.inference.samples import MODEL

HUNDRED = Workload(prompt_tokens=100, max_tokens=0)


class Counted:
    """A registry whose count of today's tokens the test sets; None while the database is away."""

    def __init__(self) -> None:
        self.tokens: int | None = 900
        self.asked = 0

    async def overflowed_today(self) -> int:
        self.asked += 1
        if self.tokens is None:
            raise Unavailable
        return self.tokens


def has_room(bench: Bench) -> bool:
    return bench.hub.overflow.has_room(HUNDRED, asyncio.get_running_loop().time())


async def test_it_follows_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "FOLLOW_S", 0.001)
    registry = Counted()
    async with benched(overflow=Overflow()) as bench:
        following = asyncio.create_task(overflow.follow(bench.hub, cast(Any, registry), 1000))
        await asyncio.sleep(0)
        assert not registry.asked, "no overflow engine is connected"
        await bench.join(model=msgspec.structs.replace(MODEL, overflow=True))
        await until(lambda: has_room(bench))
        registry.tokens = 901
        await until(lambda: not has_room(bench))
        registry.tokens = 0
        await until(lambda: has_room(bench))
        registry.tokens = None
        await until(lambda: not has_room(bench))
        following.cancel()
