"""A tenant's program that repeats each request until it is answered, because gateways, the console
and PostgreSQL come and go."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import httpx

from tests.labs.chaos.clients.customers import Customer

G = TypeVar("G")
ANSWER_S = 20.0
POLL_S = 0.5
BATCHERS = ("free-of-limits", "narrow")
"""Tenants that send batches. The limits of the others would delay lines for longer than a run.
Budgets do not suit either: Redis counts each dispatch of a line, the ledger only the last one."""


class Asker(AbstractAsyncContextManager["Asker"]):
    """A client with one of a customer's keys; an async context manager."""

    def __init__(
        self,
        customer: Customer,
        urls: dict[str, str],
        is_ready: Callable[[str], bool],
        luck: random.Random,
    ) -> None:
        self.customer, self.luck = customer, luck
        self._urls, self._is_ready = urls, is_ready
        headers = {"Authorization": f"Bearer {luck.choice(customer.keys)}"}
        self._http = httpx.AsyncClient(trust_env=False, timeout=ANSWER_S, headers=headers)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Repeat the request until there is an answer below 429."""
        while True:
            try:
                url = await self._gateway()
                response = await self._http.request(method, url + path, **options)
            except httpx.HTTPError:
                pass
            else:
                if response.status_code < 429:
                    return response
            await asyncio.sleep(POLL_S)

    async def _gateway(self) -> str:
        while not (ready := [*filter(self._is_ready, self._urls)]):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return self._urls[self.luck.choice(ready)]


@dataclass
class Programs(ABC, Generic[G]):
    """One program for each of BATCHERS, which keeps asking gateways for work in the batch lane and
    records the results."""

    seeded: ClassVar[str]
    """Distinguishes the random numbers of these programs from those of others."""
    customers: list[Customer]
    urls: dict[str, str]
    is_ready: Callable[[str], bool]
    got: list[G] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, seed: int) -> None:
        """Ask until `over` is set; returns when the last work has ended."""
        async with asyncio.TaskGroup() as tasks:
            for customer in self.customers:
                if customer.slug in BATCHERS:
                    luck = random.Random(f"{seed}/{customer.slug}{self.seeded}")
                    asker = Asker(customer, self.urls, self.is_ready, luck)
                    tasks.create_task(self._keep_on(asker))

    async def _keep_on(self, asker: Asker) -> None:
        async with asker:
            while not self.over.is_set():
                await self._work(asker)

    @abstractmethod
    async def _work(self, asker: Asker) -> None:
        """Ask for some work and wait until it has ended."""
