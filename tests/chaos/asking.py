"""A program of a tenant that asks until it is answered: gateways, the console and PostgreSQL come
and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import httpx

from tests.chaos.customers import Customer

ANSWER_S = 20.0
POLL_S = 0.5


class Asker(AbstractAsyncContextManager["Asker"]):
    """By one key of a customer; an async context manager."""

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
        """Until there is an answer."""
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
