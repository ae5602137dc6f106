"""The log line of each request: what it contains, and what it never contains."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from inference.errors import RateLimitExceeded
from inference.gateway.records.log_line import SHOWN_MODEL, LogLine
from inference.interfaces.limiter import Reservation
from tests.inference.rig import SLOW, STALLED, Rig, chat, rig, until
from tests.inference.samples import MODEL

CHAT = "/v1/chat/completions"
SECRET = "what the weather is like in Cusco"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """The log lines of requests."""
    with capture_logs() as all_lines:
        yield _OfRequests(all_lines)


class _OfRequests(list[dict[str, Any]]):
    """Filters the log at each access, because a request's line may come after its answer."""

    def __init__(self, all_lines: Any) -> None:
        super().__init__()
        self._all = all_lines

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter([line for line in self._all if line["event"] == "request"])

    def __len__(self) -> int:
        return len(list(iter(self)))


async def asked(stack: Rig, path: str = CHAT, key: str = "acme", **body: Any) -> httpx.Response:
    async with stack.gateway.client(key) as client:
        return await client.post(path, json=body)


async def one(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Wait for the only line, check its fields and return it."""
    await until(lambda: len(lines))
    (line,) = lines
    assert set(line) - {"event", "log_level"} <= set(LogLine.__struct_fields__)
    return line


async def test_who_asked_for_what_and_what_it_took(stack: Rig, lines: list[dict[str, Any]]) -> None:
    ref = stack.adapter("acme", "support")
    answer = await asked(stack, **chat("support", SECRET, max_tokens=5))
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    line = await one(lines)
    times = [line.pop(name) for name in ("ms", "queue_ms", "load_ms", "ttft_ms")]
    assert all(time >= 0 for time in times)
    assert line == {
        "event": "request",
        "log_level": "info",
        "request_id": answer.headers["x-request-id"].removeprefix("req_"),
        "surface": "api",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "tenant": "acme",
        "key": "of-acme",
        "operation": "chat",
        "model": "support",
        "base_model": MODEL.name,
        "version": ref.digest[:12],
        "engine": "engine-1",
        "attempts": 1,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": 0,
        "output_tokens": usage["completion_tokens"],
        "outcome": "completed",
        "finish_reason": "length",
    }


async def test_no_line_has_content(stack: Rig, lines: list[dict[str, Any]]) -> None:
    await asked(stack, **chat(content=SECRET, max_tokens=3))
    await asked(stack, **chat(content=SECRET, max_tokens=3, stream=True))
    await asked(stack, **chat(content=SECRET, max_tokens=3, temperature=SECRET))
    await asked(stack, "/v1/completions", model=MODEL.name, prompt=SECRET, max_tokens=3)
    await until(lambda: len(lines) == 4)
    written = json.dumps(list(lines))
    assert "Cusco" not in written and "max_tokens" not in written


async def test_a_refused_request_has_its_code_and_who_it_was(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    answer = await asked(stack, **chat("x" * 1000))
    assert answer.status_code == 404
    line = await one(lines)
    assert (line["tenant"], line["outcome"], line["error"]) == (
        "acme",
        "refused",
        "model_not_found",
    )
    assert line["model"] == "x" * SHOWN_MODEL and "engine" not in line
    measures = stack.gateway.hub.measures
    assert measures.requests["", "", "refused", "model_not_found"] == 1


async def test_a_wrong_key_has_no_tenant_in_the_log(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    await asked(stack, key="nobody", **chat())
    line = await one(lines)
    assert (line["status"], line["error"]) == (401, "invalid_api_key")
    assert not {"tenant", "key", "model", "attempts"} & set(line)


async def test_what_a_limit_refuses_is_counted_by_kind_and_scope(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    async def refuse(*_: Any) -> Reservation:
        error = RateLimitExceeded("no more")
        error.limit_kind, error.limit_scope = "requests_per_minute", "tenant"
        raise error

    stack.gateway.limits.reserve = refuse  # type: ignore[method-assign, assignment]
    await asked(stack, **chat())
    assert (await one(lines))["error"] == "rate_limit_exceeded"
    measures = stack.gateway.hub.measures
    assert measures.refusals == {("requests_per_minute", "tenant"): 1}


async def test_a_client_that_goes_away_is_told_of_with_what_was_billed(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    stack.engine.behaviour = SLOW  # type: ignore[attr-defined]
    async with stack.gateway.client() as client:
        async with client.stream("POST", CHAT, json=chat(max_tokens=2000, stream=True)) as answer:
            async for _ in answer.aiter_lines():
                break
    line = await one(lines)
    (entry,) = await stack.gateway.ledger.settled()
    assert (line["outcome"], line["error"]) == ("cancelled", "cancelled")
    assert line["output_tokens"] == entry.usage.completion_tokens
    requests = stack.gateway.hub.measures.requests
    assert requests[MODEL.name, "engine-1", "cancelled", "cancelled"] == 1


async def test_an_answer_from_memory_reached_no_engine(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    async with stack.gateway.client() as client:
        for _ in range(2):
            headers = {"Idempotency-Key": "once"}
            answer = await client.post(CHAT, json=chat(max_tokens=2), headers=headers)
            assert answer.status_code == 200
    await until(lambda: len(lines) == 2)
    first, again = lines
    assert first["attempts"] == 1 and "attempts" not in again
    assert first["request_id"] == again["request_id"]
    assert stack.gateway.hub.measures.requests["", "", "completed", "replayed"] == 1


async def test_requests_without_generation_are_logged_and_not_counted(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    async with stack.gateway.client() as client:
        await client.get("/v1/models")
    line = await one(lines)
    assert (line["path"], line["outcome"]) == ("/v1/models", "completed")
    assert not any(stack.gateway.hub.measures.requests.values())


async def test_a_request_whose_engine_is_lost_failed(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    stack.engine.behaviour = STALLED  # type: ignore[attr-defined]
    asking = asyncio.create_task(asked(stack, **chat(max_tokens=3)))
    await until(lambda: stack.gateway.hub.in_flight)
    stack.running.cancel()
    assert (await asking).status_code in (502, 503)
    line = await one(lines)
    assert line["outcome"] == "failed" and line["attempts"] == 1
    assert "queue_ms" not in line, "no engine said so"


def test_the_document_explains_every_field() -> None:
    text = (ROOT / "docs" / "observe.md").read_text()
    table = text.split("## Logs")[1].split("\n## ")[0]
    explained = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]+) \|", table, re.M)))
    assert set(explained) == set(LogLine.__struct_fields__) | {
        "event",
        "level",
        "timestamp",
        "process",
    }


async def test_what_became_of_requests_is_counted_by_tenant_key_and_adapter(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    stack.adapter("acme", "support")
    answer = await asked(stack, **chat("support", max_tokens=5))
    refused = await asked(stack, **chat("nothing", SECRET))
    outcomes = stack.gateway.hub.outcomes
    await until(lambda: len(lines) == 2)
    tallies, (refusal,), _ = outcomes.take()
    (done,) = [(group, tally) for group, tally in tallies.items() if group.adapter]
    group, tally = done
    assert (group.adapter, group.base_model) == ("support", MODEL.name)
    assert (group.outcome, group.code) == ("completed", "length")
    assert (tally.requests, tally.output_tokens) == (1, answer.json()["usage"]["completion_tokens"])
    assert sum(tally.first_tokens) == sum(tally.totals) == 1
    assert refused.headers["x-request-id"] == f"req_{refusal.id}"
    assert (refusal.status, refusal.code, refusal.model) == (404, "model_not_found", "nothing")
    assert refusal.message == refused.json()["error"]["message"]
    assert (refusal.tenant_id, refusal.key_id) == (group.tenant_id, group.key_id)
    assert refusal.total_s >= 0 and refusal.base_model == ""


async def test_a_refused_request_is_kept_whatever_it_is_for(
    stack: Rig, lines: list[dict[str, Any]]
) -> None:
    async with stack.gateway.client() as client:
        refused = [await client.get(f"/v1/{path}") for path in ("models/x", "responses/resp_x")]
        await client.get("/v1/models")
    await until(lambda: len(lines) == 3)
    tallies, kept, _ = stack.gateway.hub.outcomes.take()
    assert not tallies
    assert [(one.status, one.message) for one in kept] == [
        (answer.status_code, answer.json()["error"]["message"]) for answer in refused
    ]
    assert {one.tenant_id for one in kept} == {len("acme")}


async def test_requests_without_a_valid_key_are_not_counted(stack: Rig) -> None:
    async with stack.gateway.client("nobody") as client:
        answer = await client.post(CHAT, json=chat())
    assert answer.status_code == 401
    assert stack.gateway.hub.outcomes.take() == ({}, [], [])
