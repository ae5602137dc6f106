"""Tenants' batches: each program sends one after another and records the final result of each."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from inference.operations.operation import Operation
from inference.operations.registry import OPERATIONS
from tests.inference.operations.examples import EXAMPLES
from tests.labs.chaos.clients.asking import POLL_S, Asker, Programs
from tests.labs.chaos.judging.facts import BatchGot, Counts, LineGot
from tests.labs.chaos.judging.sources.reading import Reader, reader_of

OF_BATCHES = [one for one in OPERATIONS if one.in_batches]
LINES = (10, 40)
CANCELLED = 0.2
"""Share of the batches."""
CANCEL_AFTER_S = (1.0, 8.0)
ENDED = ("completed", "failed", "expired", "cancelled")


class Batches(Programs[BatchGot]):
    """All batches of a run. They are sent to gateways, which forward them to the console."""

    seeded = ""

    async def _work(self, asker: Asker) -> None:
        luck, number = asker.luck, len(self.got)
        operation = luck.choice(OF_BATCHES)
        lines = [_line(asker, operation, f"{number}-{one}") for one in range(luck.randint(*LINES))]
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        upload: dict[str, Any] = {
            "files": {"file": ("lines.jsonl", content)},
            "data": {"purpose": "batch"},
        }
        file = (await asker.ask("POST", "/v1/files", **upload)).json()
        endpoint = operation.path
        wanted = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"}
        batch = (await asker.ask("POST", "/v1/batches", json=wanted)).json()
        got = BatchGot(batch["id"], asker.customer.slug, {line["custom_id"] for line in lines})
        self.got.append(got)
        if luck.random() < CANCELLED:
            await asyncio.sleep(luck.uniform(*CANCEL_AFTER_S))
            await asker.ask("POST", f"/v1/batches/{got.id}/cancel")
        while (batch := await _look(asker, got))["status"] not in ENDED:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        for role in ("output", "error"):
            if (id := batch[f"{role}_file_id"]) is not None:
                content = (await asker.ask("GET", f"/v1/files/{id}/content")).content
                rows = map(json.loads, content.splitlines())
                got.lines += [_line_got(row, reader_of(endpoint)) for row in rows]
        got.status = batch["status"]


def _line(asker: Asker, operation: Operation, id: str) -> dict[str, Any]:
    luck, customer, example = asker.luck, asker.customer, EXAMPLES[operation.name]
    model = customer.embedding if operation.pools else luck.choice(customer.models)
    body = example.body(model, f"Line {id}: what do you have?")
    if example.bound:
        body |= {example.bound: luck.randint(4, 60), "ignore_eos": True}
    return {"custom_id": id, "method": "POST", "url": operation.path, "body": body}


async def _look(asker: Asker, got: BatchGot) -> Any:
    batch = (await asker.ask("GET", f"/v1/batches/{got.id}")).json()
    counts, usage = batch["request_counts"], batch["usage"]
    got.completed, got.failed = counts["completed"], counts["failed"]
    got.usage = Counts(
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
    )
    return batch


def _line_got(line: dict[str, Any], read: Reader) -> LineGot:
    """The content of a line of an output or error file."""
    custom_id, response = line["custom_id"], line["response"]
    if response is None:
        return LineGot(custom_id, code=line["error"]["code"])
    id, body = response["request_id"].removeprefix("req_"), response["body"]
    if response["status_code"] != 200:
        return LineGot(custom_id, id, body["error"]["code"])
    usage = read(body).usage
    assert usage is not None
    return LineGot(custom_id, id, usage=usage)
