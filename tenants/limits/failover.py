"""Chooses the store that counts, and queues the commands that Redis still has to get.

While Redis is down no request waits for it: a background task tries it once a second. Meanwhile
this process counts locally, or refuses. Commands that end reservations wait in a bounded queue
until Redis has them; if that is full, this process takes a new holder name, and what it reserved
under the old one is given back when the old one's lease expires.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Self

import structlog

from inference.errors import Unavailable
from inference.process.supervision import ended, supervised
from tenants.limits.commands import (
    AnyCommand,
    Keep,
    LimitStore,
    Release,
    Renew,
    SettleReservation,
    SpentReport,
    StoreDown,
)
from tenants.limits.memory import MemoryStore
from tenants.limits.state import LEASE_MS

log = structlog.get_logger(__name__)

RENEW_S = LEASE_MS / 3000
RETRY_S = 1.0
"""How often Redis is tried while it is down."""
BATCH = 256
MAX_PENDING = 100_000
"""At most how many ended requests wait for Redis: about 20 MB."""


class Failover:
    """Use as an async context manager; leaving it sends Redis the commands that are pending."""

    def __init__(
        self,
        local: MemoryStore,
        redis: LimitStore | None = None,
        *,
        refuse: bool = False,
        retry_s: float = RETRY_S,
        max_pending: int = MAX_PENDING,
    ) -> None:
        """Without `redis` the local store is the only one. Otherwise it is used while Redis is
        down, or (`refuse`) requests are refused then. This object owns both stores."""
        self.local, self.redis = local, redis
        self.holder = secrets.token_hex(8)
        self.degraded = False
        """Whether Redis is down at the moment."""
        self.degraded_decisions = 0
        """Decisions without Redis since the start, including refusals because of its absence."""
        self.redis_failures = 0
        self.lingers = False
        """Whether other gateways may take over reservations of this process, so that its lease must
        outlive it."""
        self._refuse, self._retry_s, self._max_pending = refuse, retry_s, max_pending
        self._pending: deque[AnyCommand] = deque()
        self._overflowed = False
        self._work, self._drained, self._lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._drained.set()

    def decide(self) -> LimitStore:
        """The store for one decision.

        Raises:
            Unavailable: Redis is down, and the settings say to refuse.
        """
        if self.redis is None:
            return self.local
        if not self.degraded:
            return self.redis
        self.degraded_decisions += 1
        if self._refuse:
            raise Unavailable("The rate limits cannot be checked.", retry_after_s=RETRY_S)
        return self.local

    def failed(self, error: StoreDown) -> None:
        """Note that Redis did not answer."""
        self.redis_failures += 1
        if not self.degraded:
            self.degraded = True
            self._lost.set()
            log.error("limits_degraded", refuse=self._refuse, error=str(error))

    def end(
        self, store: LimitStore, command: SettleReservation | SpentReport | Keep | Release
    ) -> None:
        """End a reservation in that store, immediately or soon. Never raises."""
        if store is self.local:
            self.local.do(command)
        elif len(self._pending) < self._max_pending:
            self._pending.append(command)
            self._drained.clear()
            if not self.degraded:
                self._work.set()
        else:
            self._let_lease_expire()

    async def flushed(self) -> None:
        """Wait until Redis has all ends of reservations; while it is down, until it is back."""
        await self._drained.wait()

    async def __aenter__(self) -> Self:
        await self._renew()
        loops = (self._renew_always, self._tell_always)
        self._tasks = [asyncio.create_task(supervised("limits", one)) for one in loops]
        return self

    async def __aexit__(self, *_: object) -> None:
        await ended(self._tasks)
        if self.redis is not None:
            with suppress(StoreDown):
                await self._tell()
                if not self.lingers:
                    await self.redis.run(Renew(self.holder, 0))
            if self._pending:
                log.error("limits_not_settled", requests=len(self._pending))
            await self.redis.close()

    async def _renew_always(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):  # wait_for may swallow a cancellation
                    await self._lost.wait()
                await asyncio.sleep(self._retry_s)
            await self._renew()

    async def _renew(self) -> None:
        self.local.do(Renew(self.holder, LEASE_MS))
        if self.redis is None:
            return
        try:
            await self.redis.run(Renew(self.holder, LEASE_MS))
        except StoreDown as error:
            self.failed(error)
        else:
            self._answered()

    def _answered(self) -> None:
        if self.degraded:
            self.degraded = self._overflowed = False
            self._lost.clear()
            log.info("limits_restored", failures=self.redis_failures)
        self._work.set()

    async def _tell_always(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._tell()
            except StoreDown as error:
                self.failed(error)  # `_answered` sets `_work` again

    async def _tell(self) -> None:
        """Send Redis what is pending. Sending a command twice has no further effect."""
        assert self.redis is not None
        while batch := list(islice(self._pending, BATCH)):
            await self.redis.run(*batch)
            for _ in batch:
                self._pending.popleft()
        self._drained.set()

    def _let_lease_expire(self) -> None:
        """Take a new holder name: reservations that cannot be ended are given back when the old
        holder's lease expires."""
        self.holder = secrets.token_hex(8)
        if not self._overflowed:
            self._overflowed = True
            log.error("limits_pending_full", requests=len(self._pending))
