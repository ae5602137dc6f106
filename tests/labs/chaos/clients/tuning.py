"""Tenants' fine-tuning jobs: each program starts one every few seconds, and records how each ended.

Some are paused for a while, some are cancelled, and some have a file with a fault.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

import demo
from tests.labs.chaos.clients.asking import POLL_S, Asker, Programs
from tests.labs.chaos.judging.facts import TuningGot
from tests.labs.chaos.stage import MODEL
from tests.tuning.rows import ROWS, jsonl

EVERY_S = (4.0, 9.0)
MOST = 8
"""Unfinished jobs of a tenant: more than stall when a trainer dies with them."""
EPOCHS = (6, 16)
FAULTY, CANCELLED, PAUSED = 0.1, 0.15, 0.2
"""Shares of the jobs."""
AFTER_S = (0.0, 15.0)
"""When a job is paused or cancelled, and how long it is paused."""
NUMBERS = {"batch_size": 1, "learning_rate_multiplier": 20}
ENDED = ("succeeded", "failed", "cancelled")
LISTED = 100
"""Events in an answer, the API's maximum."""


@cache
def epoch_tokens() -> int:
    """The tokens of ROWS, by the base model's tokenizer and chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo.BASE)
    rendered = (tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in ROWS)
    return sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in rendered)


class Tunings(Programs[TuningGot]):
    """All fine-tuning jobs of a run."""

    seeded = "/tuning"

    async def _work(self, asker: Asker) -> None:
        mine: list[TuningGot] = []
        async with asyncio.TaskGroup() as following:
            while not self.over.is_set():
                if sum(not one.status for one in mine) < MOST:
                    one = TuningGot(asker.customer.slug, epochs=asker.luck.randint(*EPOCHS))
                    mine.append(one)
                    following.create_task(self._train(asker, one))
                await self._pause(asker)

    async def _pause(self, asker: Asker) -> None:
        try:
            await asyncio.wait_for(self.over.wait(), asker.luck.uniform(*EVERY_S))
        except TimeoutError:
            pass

    async def _train(self, asker: Asker, one: TuningGot) -> None:
        luck = asker.luck
        fate, after_s, rest_s = luck.random(), luck.uniform(*AFTER_S), luck.uniform(*AFTER_S)
        one.faulty = fate < FAULTY
        one.id = await _created(asker, one)
        self.got.append(one)
        path = f"/v1/fine_tuning/jobs/{one.id}"
        if FAULTY <= fate < FAULTY + CANCELLED:
            await asyncio.sleep(after_s)
            await asker.ask("POST", f"{path}/cancel")
        elif FAULTY + CANCELLED <= fate < FAULTY + CANCELLED + PAUSED:
            await asyncio.sleep(after_s)
            await asker.ask("POST", f"{path}/pause")
            await asyncio.sleep(rest_s)
            await asker.ask("POST", f"{path}/resume")
        while (job := (await asker.ask("GET", path)).json())["status"] not in ENDED:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        one.went_on = await _times_gone_on(asker, path)
        one.status, one.trained_tokens = job["status"], job["trained_tokens"]
        one.code = (job["error"] or {}).get("code", "")


async def _created(asker: Asker, one: TuningGot) -> str:
    """Upload its file and create the job; returns its id. Repeated until there is an answer, so
    under an idempotency key."""
    rows: list[Any] = [*ROWS, {"messages": []}] if one.faulty else ROWS
    upload: dict[str, Any] = {
        "files": {"file": ("rows.jsonl", jsonl(rows))},
        "data": {"purpose": "fine-tune"},
    }
    file = (await asker.ask("POST", "/v1/files", **upload)).json()
    asked = {
        "model": MODEL,
        "training_file": file["id"],
        "suffix": "chaos",
        "hyperparameters": NUMBERS | {"n_epochs": one.epochs},
    }
    headers = {"Idempotency-Key": f"{asker.luck.getrandbits(64):x}"}
    made = await asker.ask("POST", "/v1/fine_tuning/jobs", json=asked, headers=headers)
    return str(json.loads(made.content).get("id", made.text))


async def _times_gone_on(asker: Asker, path: str) -> int:
    """How often it went on from a saved state."""
    found, after = 0, ""
    while True:
        listed = (await asker.ask("GET", f"{path}/events?limit={LISTED}{after}")).json()
        said = [str(event["message"]) for event in listed["data"]]
        found += sum(one.startswith("Training goes on after step") for one in said)
        if not listed["has_more"]:
            return found
        after = f"&after={listed['data'][-1]['id']}"
