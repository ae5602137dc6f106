"""Tenants' responses in the background: each program requests some and records how they ended."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.labs.chaos.clients.asking import POLL_S, Asker, Programs
from tests.labs.chaos.judging.facts import Counts, ResponseGot

AT_ONCE = (1, 6)
CANCELLED = 0.2
"""Share of the responses."""
CANCEL_AFTER_S = (0.0, 6.0)
ENDED = ("completed", "incomplete", "failed", "cancelled")


class InBackground(Programs[ResponseGot]):
    """All responses of a run."""

    seeded = "/background"

    async def _work(self, asker: Asker) -> None:
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
