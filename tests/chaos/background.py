"""Tenants' responses of the background: each has some made, and notes what became of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.asking import POLL_S, Asker
from tests.chaos.batches import BATCHERS
from tests.chaos.customers import Customer
from tests.chaos.judging.facts import Counts, ResponseGot

AT_ONCE = (1, 6)
CANCELLED = 0.2
"""Of the responses."""
CANCEL_AFTER_S = (0.0, 6.0)
ENDED = ("completed", "incomplete", "failed", "cancelled")


@dataclass
class InBackground:
    """All of a run."""

    customers: list[Customer]
    urls: dict[str, str]
    is_ready: Callable[[str], bool]
    got: list[ResponseGot] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, seed: int) -> None:
        """Have some made until `over` is set; returns when the last one has ended."""
        async with asyncio.TaskGroup() as tasks:
            for customer in self.customers:
                if customer.slug in BATCHERS:
                    luck = random.Random(f"{seed}/{customer.slug}/background")
                    asker = Asker(customer, self.urls, self.is_ready, luck)
                    tasks.create_task(self._keep_on(asker))

    async def _keep_on(self, asker: Asker) -> None:
        async with asker:
            while not self.over.is_set():
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(asker.luck.randint(*AT_ONCE)):
                        tasks.create_task(self._have_one(asker))

    async def _have_one(self, asker: Asker) -> None:
        luck = asker.luck
        id = f"{luck.getrandbits(64):x}"
        body = {
            "model": luck.choice(asker.customer.models),
            "input": f"Response {id}: what do you have?",
            "max_output_tokens": luck.randint(4, 60),
            "ignore_eos": True,
            "background": True,
        }
        cancelled, after_s = luck.random() < CANCELLED, luck.uniform(*CANCEL_AFTER_S)
        headers = {"Idempotency-Key": id}
        made = await asker.ask("POST", "/v1/responses", json=body, headers=headers)
        got = ResponseGot(asker.customer.slug, made.json().get("id", made.text))
        self.got.append(got)
        if cancelled:
            await asyncio.sleep(after_s)
            await asker.ask("POST", f"/v1/responses/{got.id}/cancel")
        while (now := (await asker.ask("GET", f"/v1/responses/{got.id}")).json()).get(
            "status"
        ) not in ENDED:
            if "error" in now and "status" not in now:
                got.code = now["error"]["code"]
                return
            await asyncio.sleep(POLL_S)
        _note(got, now)


def _note(got: ResponseGot, response: dict[str, Any]) -> None:
    got.status = response["status"]
    if response["error"] is not None:
        got.code = response["error"]["type"]
    if (usage := response["usage"]) is not None:
        cached = usage["input_tokens_details"]["cached_tokens"]
        got.usage = Counts(usage["input_tokens"], cached, usage["output_tokens"])
