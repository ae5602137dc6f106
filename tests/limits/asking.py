"""Builders of commands and of what commands refer to, and fakes of the limiter's collaborators."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from inference.errors import Unavailable
from inference.interfaces.directory import Grant, Limits, ResolvedTarget, TokenPrice
from inference.interfaces.limiter import ReservationRequest
from tenants.limits.commands import (
    AnyAnswer,
    AnyCommand,
    BudgetPeriod,
    Charge,
    CountedScope,
    Granted,
    Ids,
    Left,
    LimitRefused,
    LimitStore,
    Peek,
    Renew,
    Rooms,
    StoreDown,
    TokenRate,
)
from tenants.limits.kinds import KINDS, LimitKind, table
from tenants.limits.memory import MemoryStore
from tenants.limits.state import LEASE_MS

NOON = int(datetime(2026, 5, 14, 12, tzinfo=UTC).timestamp())
TODAY = int(datetime(2026, 5, 14, tzinfo=UTC).timestamp())
THIS_MONTH = int(datetime(2026, 5, 1, tzinfo=UTC).timestamp())
DAY = BudgetPeriod("t1", "day", TODAY)
MONTH = BudgetPeriod("t1", "month", THIS_MONTH)
COUNTED = tuple(name for name, kind in KINDS.items() if not kind.is_budget)
"""Kinds that only the stores count."""
IMAGES = LimitKind(
    "images_per_minute",
    "minute",
    "images",
    label="Images per minute",
    wording="images per minute",
    help="Images in any minute.",
    header="images",
)
WITH_IMAGES = table(*KINDS.values(), IMAGES)
"""The kinds with one more, which counts something that no other kind counts."""
TIMEOUT_S = 60.0
"""Seconds. A busy machine must not look like a dead Redis."""


class Clock:
    """Unix time in milliseconds, moved by hand."""

    def __init__(self) -> None:
        self.now_ms = NOON * 1000

    def __call__(self) -> int:
        return self.now_ms

    def pass_s(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


def scope(id: str = "t1", **limits: int) -> CountedScope:
    return CountedScope(id, limits)


def charge(
    id: str = "r1", *scopes: CountedScope, prompt: int = 10, output: int = 20, **fields: Any
) -> Charge:
    """For exactly `output` tokens, unless `least_output_tokens` is given."""
    defaults: dict[str, Any] = {
        "holder": "g1",
        "rate": TokenRate(),
        "quantities": {"requests": 1},
        "least_output_tokens": output,
    }
    return Charge(
        id=id, scopes=scopes, prompt_tokens=prompt, output_tokens=output, **(defaults | fields)
    )


def more(charged: Charge, output: int, least: int = 1) -> Charge:
    """A charge of more tokens for a running request."""
    return Charge(
        charged.id, charged.holder, charged.scopes, charged.rate, {}, 0, output, least
    )  # fmt: skip


class Both:
    """A store in memory and one on Redis, which must answer each command alike."""

    def __init__(self, *stores: LimitStore) -> None:
        self._stores = stores

    async def run(self, *commands: AnyCommand) -> list[AnyAnswer]:
        answers, others = [await store.run(*commands) for store in self._stores]
        assert list(map(_in_order, answers)) == list(map(_in_order, others))
        return answers

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def _in_order(answer: AnyAnswer) -> AnyAnswer:
    return Ids(sorted(answer.ids)) if isinstance(answer, Ids) else answer


async def ask(store: LimitStore, command: AnyCommand) -> AnyAnswer:
    (answer,) = await store.run(command)
    return answer


async def live_on(store: LimitStore, clock: Clock, seconds: float, holder: str = "g1") -> None:
    """Let time pass while this gateway renews its lease."""
    while seconds > 0:
        step = min(seconds, LEASE_MS / 2000)
        clock.pass_s(step)
        await ask(store, Renew(holder, LEASE_MS))
        seconds -= step


async def granted(store: LimitStore, command: Charge) -> int:
    """The output tokens of a charge that must be granted."""
    answer = await ask(store, command)
    assert isinstance(answer, Granted), answer
    return answer.output_tokens


async def refused(store: LimitStore, command: Charge) -> LimitRefused:
    answer = await ask(store, command)
    assert isinstance(answer, LimitRefused), answer
    return answer


async def left(store: LimitStore, *scopes: CountedScope) -> list[Left]:
    answer = await ask(store, Peek(scopes))
    assert isinstance(answer, Rooms), answer
    return answer.left


async def remaining(store: LimitStore, *scopes: CountedScope) -> list[int]:
    return [each.remaining for each in await left(store, *scopes)]


def limits(scope_id: str = "t1", shown: str = "tenant `acme`", **values: int) -> Limits:
    return Limits(scope_id, shown, values)


def grant(*scopes: Limits) -> Grant:
    return Grant(
        1, 1, "acme", frozenset({"inference"}), None, 1.0, "salt", limits=scopes
    )  # fmt: skip


def target(*scopes: Limits, price: TokenPrice | None = None) -> ResolvedTarget:
    return ResolvedTarget("base", "base", limits=scopes, price=price or TokenPrice())


def wanted(prompt: int = 10, output: int = 20, least: int | None = None) -> ReservationRequest:
    return ReservationRequest(prompt, output, output if least is None else least)


class FlakyStore:
    """`commands.LimitStore` in memory that can be away or lose its state, as a Redis can."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.away = self.forgetful = False
        self._memory = self._snapshot = MemoryStore(clock)

    def snapshot(self) -> None:
        """Take the state that `roll_back` returns to."""
        self._snapshot = deepcopy(self._memory)

    def roll_back(self) -> None:
        """Restore the snapshot, as a Redis does that crashed before writing its last second to
        disk."""
        self._memory = self._snapshot

    def forget(self) -> None:
        """Lose all state, as a restart does."""
        self._memory = MemoryStore(self._clock)

    async def run(self, *commands: AnyCommand) -> list[AnyAnswer]:
        await asyncio.sleep(0)  # as anything over a socket does
        if self.away:
            raise StoreDown("away")
        if self.forgetful:
            self.forget()
        return await self._memory.run(*commands)

    async def close(self) -> None:
        """There is nothing to release."""


class FakeSpent:
    """`spent.Spent` from a dictionary; records each call."""

    def __init__(self, **spent: tuple[int, int]) -> None:
        self.figures = spent
        """By scope id: tokens and cost."""
        self.asked: list[tuple[str, datetime, datetime]] = []
        self.away = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def spent(self, scope_id: str, start: datetime, end: datetime) -> tuple[int, int]:
        self.asked.append((scope_id, start, end))
        await self.may_answer.wait()
        if self.away:
            raise Unavailable("The ledger is away.")
        return self.figures.get(scope_id, (0, 0))
