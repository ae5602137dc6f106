"""What every operation has without asking for it: keys, limits, tenants, idempotency, a bill, and
errors in its own shape. Over all that are registered, so that a new one can't be forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from inference.agent.engines.synthetic import Behaviour, SyntheticEngine
from inference.errors import InvalidRequest
from inference.gateway.content import Kept
from inference.operations.instant import InstantOperation
from inference.operations.operation import Operation
from inference.operations.pooling.pooling import PoolingOperation
from inference.operations.registry import OPERATIONS
from tests.inference.operations.bodies import BODIES, MAX_TOKENS
from tests.inference.rig import STALLED, Rig, rig, until
from tests.inference.samples import MODEL

ALL = pytest.mark.parametrize("operation", [*OPERATIONS], ids=lambda operation: operation.name)
INSTANT = [one for one in OPERATIONS if isinstance(one, InstantOperation)]
POOLING = [one for one in OPERATIONS if isinstance(one, PoolingOperation)]
GENERATING = [one for one in OPERATIONS if one not in (*INSTANT, *POOLING)]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, max_running=1) as made:
        yield made


def body_of(operation: Operation, model: str = MODEL.name, **fields: Any) -> dict[str, Any]:
    return BODIES[operation.name](model) | fields


async def ask(
    stack: Rig,
    operation: Operation,
    body: dict[str, Any] | None = None,
    key: str = "acme",
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    async with stack.gateway.client(key) as client:
        body = body_of(operation) if body is None else body
        return await client.post(operation.path, json=body, headers=headers)


def code_of(answer: httpx.Response, operation: Operation) -> tuple[int, str]:
    """Its status and code; it has the shape of its operation's errors."""
    body = answer.json()
    assert set(body) == set(json.loads(operation.errors.body(InvalidRequest(), "x")))
    if header := operation.errors.id_header:
        assert answer.headers[header.decode()] == answer.headers["x-request-id"]
    return answer.status_code, body["error"]["code"]


def test_each_has_a_body() -> None:
    assert BODIES.keys() == {operation.name for operation in OPERATIONS}


@ALL
async def test_it_is_answered_and_billed_once(stack: Rig, operation: Operation) -> None:
    answer = await ask(stack, operation)
    assert answer.status_code == 200, answer.text
    (entry,) = await stack.gateway.ledger.settled()
    assert entry.model == MODEL.name and entry.finish_reason == "stop"
    assert answer.headers["x-request-id"] == f"req_{entry.id}"
    assert stack.gateway.limits.settled == {entry.id: entry.usage}
    assert bool(entry.usage.prompt_tokens) == (operation not in INSTANT)
    assert bool(entry.usage.completion_tokens) == (operation in GENERATING)


@ALL
async def test_content_is_taken_up_of_who_keeps_it_and_of_nobody_else(
    stack: Rig, operation: Operation
) -> None:
    stack.gateway.keys.keeping.add("acme")
    answers = {key: await ask(stack, operation, key=key) for key in ("acme", "globex")}
    assert {answer.status_code for answer in answers.values()} == {200}
    contents = stack.gateway.hub.contents
    (taken,) = contents.take(10, 1 << 20)
    kept = msgspec.json.decode(taken.text, type=Kept)
    assert taken.tenant_id == len("acme")
    assert f"req_{taken.id}" == answers["acme"].headers["x-request-id"]
    assert (kept.operation, json.loads(kept.request)) == (operation.name, body_of(operation))
    assert (kept.text or kept.response) and not kept.cut and contents.used_bytes == 0


@ALL
async def test_adapters_are_their_tenants_own(stack: Rig, operation: Operation) -> None:
    ref = stack.adapter("acme", "support")
    mine, theirs = [
        await ask(stack, operation, body_of(operation, "support"), key)
        for key in ("acme", "globex")
    ]
    assert mine.status_code == 200
    assert code_of(theirs, operation) == (404, "model_not_found")
    loaded = [adapter.ref.name for adapter in stack.engine._loaded.values()]  # type: ignore[attr-defined]
    assert loaded == ([ref.name] if operation.uses_adapter else [])


@ALL
async def test_refusals_have_its_shape(stack: Rig, operation: Operation) -> None:
    async def code(body: dict[str, Any] | None = None, key: str = "acme") -> tuple[int, str]:
        return code_of(await ask(stack, operation, body, key), operation)

    assert await code(key="") == (401, "invalid_api_key")
    assert await code(key="nobody") == (401, "invalid_api_key")
    assert await code(key="acme:usage:read") == (403, "insufficient_permissions")
    assert await code({"model": MODEL.name}) == (400, "invalid_request")
    assert await code(body_of(operation) | {"model": 7}) == (400, "invalid_request")
    assert await code(body_of(operation, "nothing")) == (404, "model_not_found")
    async with stack.gateway.client() as client:
        assert code_of(await client.get(operation.path), operation)[0] == 405
        large = await client.post(operation.path, content=b'"' + b"a" * 200_000)
        assert code_of(large, operation) == (413, "payload_too_large")
    assert stack.engine.stats().completion_tokens == 0


@ALL
async def test_limits_of_requests_hold(stack: Rig, operation: Operation) -> None:
    stack.gateway.limits.full = True
    refused = await ask(stack, operation)
    assert code_of(refused, operation) == (429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "3"
    assert not stack.engine.stats().completion_tokens


@pytest.mark.parametrize("operation", GENERATING, ids=lambda operation: operation.name)
async def test_limits_of_tokens_hold(stack: Rig, operation: Operation) -> None:
    stack.gateway.limits.tokens_left = 10
    assert code_of(await ask(stack, operation), operation) == (429, "rate_limit_exceeded")
    bound: dict[str, Any] = {MAX_TOKENS.get(operation.name, "max_tokens"): 10}
    allowed = await ask(stack, operation, body_of(operation, **bound))
    assert allowed.headers["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.parametrize("operation", INSTANT, ids=lambda operation: operation.name)
async def test_what_generates_nothing_takes_no_tokens(stack: Rig, operation: Operation) -> None:
    stack.gateway.limits.tokens_left = 0
    answer = await ask(stack, operation)
    assert answer.status_code == 200
    (usage,) = stack.gateway.limits.settled.values()
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (0, 0, 0)


@ALL
async def test_what_is_left_is_told_whatever_is_answered(stack: Rig, operation: Operation) -> None:
    stack.gateway.limits.tokens_left = 1000
    key = {"Idempotency-Key": "order 17"}
    for body, status in ((body_of(operation), 200), (body_of(operation), 200), ({}, 400)):
        answer = await ask(stack, operation, body, headers=key if body else None)
        assert answer.status_code == status
        for what in ("requests", "tokens"):
            for figure in ("limit", "remaining", "reset"):
                assert f"x-ratelimit-{figure}-{what}" in answer.headers


@ALL
async def test_a_retry_gets_the_same_answer_and_pays_nothing(
    stack: Rig, operation: Operation
) -> None:
    key = {"Idempotency-Key": "order 17"}
    first, again = [await ask(stack, operation, headers=key) for _ in range(2)]
    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    another = await ask(stack, operation, body_of(operation) | {"user": "x"}, headers=key)
    assert code_of(another, operation) == (409, "idempotency_key_reused")
    assert len(await stack.gateway.ledger.settled()) == 1


@ALL
async def test_the_queue_is_fair_to_it(stack: Rig, operation: Operation) -> None:
    """Who waits with one request of it goes before another tenant's second one."""
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = STALLED
    ended: list[str] = []
    chat = OPERATIONS.named("chat")

    async def run(name: str, key: str, one: Operation) -> None:
        assert (await ask(stack, one, key=key)).status_code == 200
        ended.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run("running", "acme", chat))
        await until(lambda: stack.engine.stats().running)
        for i in range(3):
            tasks.create_task(run(f"acme {i}", "acme", operation))
            await until(lambda count=i + 1: stack.agent.stats().queued == count)  # type: ignore[misc]
        tasks.create_task(run("globex", "globex", operation))
        await until(lambda: stack.agent.stats().queued == 4)
        stack.engine.behaviour = Behaviour()
    assert ended.index("globex") < ended.index("acme 1") < ended.index("acme 2")


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/v1/moderations", "chat model"),
        ("/v1/conversations", "as the `input`"),
        ("/v1/responses/compact", "`truncation`"),
    ],
)
async def test_what_there_is_none_of_says_what_to_use(stack: Rig, path: str, instead: str) -> None:
    async with stack.gateway.client() as client:
        answer = await client.post(path, json={"input": "x"})
    assert answer.status_code == 404
    assert instead in answer.json()["error"]["message"]
