"""The state of the limits in Redis, read key by key with the names of
`tenants/limits/lua/base.lua`."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from inference.interfaces.directory import MICRO
from tenants.limits import commands
from tenants.limits.commands import end_of
from tenants.limits.kinds import Period
from tests.labs.chaos.judging.facts import BudgetState, Leftovers, Spent
from tests.labs.chaos.judging.sources import ledger

PERIODS: dict[str, Period] = {"day": "day", "month": "month"}
_LUA = Path(commands.__file__).parent / "lua" / "base.lua"
(PREFIX,) = re.findall(r"^local PREFIX = '(.+)'$", _LUA.read_text(), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counters:
    """The limit counters of the run."""

    client: Redis

    @classmethod
    @asynccontextmanager
    async def connected(cls) -> AsyncIterator[Counters]:
        """Opens a connection of its own for the block."""
        client = Redis.from_url(os.environ["LORIKEET_REDIS_URL"], decode_responses=True)
        try:
            yield cls(client)
        finally:
            await client.aclose()

    async def idle(self) -> bool:
        """Whether nothing is held."""
        left = await self.leftovers()
        return not (left.reservations or left.streams or any(left.reserved.values()))

    async def has_all(self, gateways: int) -> bool:
        """Whether at least `gateways` gateways have found this Redis; each holds a lease."""
        return bool(await self.client.zcard(PREFIX + "leases") >= gateways)

    async def make_due(self) -> None:
        """Make each budget due for comparison with the ledger at its next charge, as it is after a
        minute."""
        for key in await self._keys("b:*"):
            await self.client.hset(key, "due", "0")

    async def leftovers(self) -> Leftovers:
        """What is held: reservations, and the streams and budgets that they take."""
        reservations = await self._keys("r:*") + await self._keys("held:*")
        taken = await self.client.hgetall(PREFIX + "streams")
        streams = {str(name): int(count) for name, count in taken.items()}
        reserved = {}
        for key in await self._keys("b:*"):
            budget = await self.client.hgetall(key)
            reserved[key] = int(budget["reserved_tokens"]) + int(budget["reserved_cost"])
        return Leftovers(reservations=reservations, streams=streams, reserved=reserved)

    async def budgets(self) -> list[str]:
        """The names of the budgets of current periods; yesterday's may still be there."""
        return [name for name in await self._keys("b:*") if _period(name)[1] > time.time()]

    async def budget(self, name: str, before: Spent) -> BudgetState:
        """What is counted and what is billed for a budget. `before` is what had been billed
        earlier."""
        values = await self.client.hgetall(name)
        return BudgetState(
            name=name,
            spent=Spent(int(values.get("tokens", 0)), int(values.get("cost", 0))),
            billed=await billed(name),
            billed_before=before,
        )

    async def _keys(self, pattern: str) -> list[str]:
        return sorted([key async for key in self.client.scan_iter(PREFIX + pattern, count=1000)])


async def billed(budget: str) -> Spent:
    """What the ledger has for a budget."""
    tokens, cost = await asyncio.to_thread(ledger.spent, budget.split(":")[-3], *_period(budget))
    return Spent(tokens, cost // MICRO)  # exact, because all prices are whole micro-units per token


def _period(budget: str) -> tuple[int, int]:
    """Start and end of its period, in unix seconds."""
    period, start = budget.split(":")[-2:]
    return int(start), end_of(PERIODS[period], int(start))
