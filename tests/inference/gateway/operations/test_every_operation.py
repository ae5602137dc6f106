"""What every operation has without asking for it: keys, limits, fairness, idempotency, a bill, a
line in the log, and errors in its own shape. The tests run over all registered operations, so that
a new one cannot be forgotten. `test_isolation.py` and `test_hostile_input.py` are of the same
kind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.operations.operation import Operation
from tests.inference.gateway.operations.every import (
    GENERATING,
    INSTANT,
    POOLING,
    WITH_ECHO,
    ask,
    code_of,
    each,
)
from tests.inference.operations.examples import EXAMPLES, TO_DO
from tests.inference.rig import STALLED, Rig, until
from tests.inference.samples import MODEL

SECRET = "What is the weather like in Cusco?"


@each(WITH_ECHO)
def test_it_has_an_example(operation: Operation) -> None:
    assert operation.name in EXAMPLES, f"{operation.name} is not tested: {TO_DO}"


def test_every_example_is_of_an_operation() -> None:
    assert EXAMPLES.keys() == {operation.name for operation in WITH_ECHO}


@each(WITH_ECHO)
async def test_it_is_answered_and_billed_once(stack: Rig, operation: Operation) -> None:
    answer = await ask(stack, operation)
    assert answer.status_code == 200, answer.text
    (entry,) = await stack.gateway.ledger.settled()
    assert entry.model == MODEL.name and entry.finish_reason == "stop"
    assert answer.headers["x-request-id"] == f"req_{entry.id}"
    assert stack.gateway.limits.settled == {entry.id: entry.usage}
    assert bool(entry.usage.prompt_tokens) == (operation not in INSTANT)
    assert bool(entry.usage.completion_tokens) == (operation in GENERATING)


@each(WITH_ECHO)
async def test_the_log_has_the_caller_and_no_content(stack: Rig, operation: Operation) -> None:
    """For an answer and for a refusal: in the log, in the counters and in the ledger."""
    body = EXAMPLES[operation.name].body
    with capture_logs() as logged:
        answer = await ask(stack, operation, body(text=SECRET))
        refused = await ask(stack, operation, body("nothing", SECRET), "globex")
        await until(lambda: len([one for one in logged if one["event"] == "request"]) == 2)
    lines = {line["tenant"]: line for line in logged if line["event"] == "request"}
    told = {"operation": operation.name, "path": operation.path, "surface": "api"}
    for tenant, one, ended in (
        ("acme", answer, {"status": 200, "outcome": "completed", "base_model": MODEL.name}),
        ("globex", refused, {"status": 404, "outcome": "refused", "error": "model_not_found"}),
    ):
        line = lines[tenant]
        assert line.items() >= (told | ended | {"key": f"of-{tenant}"}).items()
        assert f"req_{line['request_id']}" == one.headers["x-request-id"]
    assert "Cusco" not in str(logged)
    (entry,) = await stack.gateway.ledger.settled()
    assert (entry.id, entry.account.tenant_id, entry.account.key_id) == (
        lines["acme"]["request_id"],
        len("acme"),
        len("acme"),
    )


@each(WITH_ECHO)
async def test_refusals_have_its_shape(stack: Rig, operation: Operation) -> None:
    async def code(body: dict[str, Any] | None = None, key: str = "acme") -> tuple[int, str]:
        return code_of(await ask(stack, operation, body, key), operation)

    example = EXAMPLES[operation.name]
    assert await code(key="") == (401, "invalid_api_key")
    assert await code(key="nobody") == (401, "invalid_api_key")
    assert await code(key="acme:usage:read") == (403, "insufficient_permissions")
    assert await code({"model": MODEL.name}) == (400, "invalid_request")
    assert await code(example.body("nothing")) == (404, "model_not_found")
    async with stack.gateway.client() as client:
        assert code_of(await client.get(operation.path), operation)[0] == 405
    assert stack.engine.stats().completion_tokens == 0


@each(WITH_ECHO)
async def test_limits_of_requests_hold(stack: Rig, operation: Operation) -> None:
    stack.gateway.limits.full = True
    refused = await ask(stack, operation)
    assert code_of(refused, operation) == (429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "3"
    assert not stack.engine.stats().completion_tokens


@each(GENERATING)
async def test_limits_of_tokens_hold(stack: Rig, operation: Operation) -> None:
    example = EXAMPLES[operation.name]
    stack.gateway.limits.tokens_left = 10
    assert code_of(await ask(stack, operation), operation) == (429, "rate_limit_exceeded")
    allowed = await ask(stack, operation, example.body() | {example.bound: 10})
    assert allowed.headers["x-ratelimit-remaining-tokens"] == "0"


@each([*POOLING, *INSTANT])
async def test_operations_that_generate_nothing_reserve_no_output_tokens(
    stack: Rig, operation: Operation
) -> None:
    """It is charged for the prompt tokens that it computes."""
    stack.gateway.limits.tokens_left = 0
    assert (await ask(stack, operation)).status_code == 200
    (usage,) = stack.gateway.limits.settled.values()
    assert usage is not None and not usage.completion_tokens
    assert bool(usage.prompt_tokens) == (operation in POOLING)


@each(WITH_ECHO)
async def test_every_answer_has_rate_limit_headers(stack: Rig, operation: Operation) -> None:
    stack.gateway.limits.tokens_left = 1000
    key = {"Idempotency-Key": "order 17"}
    for body, status in ((None, 200), (None, 200), ({}, 400)):
        answer = await ask(stack, operation, body, headers=None if body == {} else key)
        assert answer.status_code == status
        for what in ("requests", "tokens"):
            for figure in ("limit", "remaining", "reset"):
                assert f"x-ratelimit-{figure}-{what}" in answer.headers


@each(WITH_ECHO)
async def test_a_retry_gets_the_same_answer_and_pays_nothing(
    stack: Rig, operation: Operation
) -> None:
    key = {"Idempotency-Key": "order 17"}
    first, again = [await ask(stack, operation, headers=key) for _ in range(2)]
    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    changed = EXAMPLES[operation.name].body(text="Another text.")
    another = await ask(stack, operation, changed, headers=key)
    assert code_of(another, operation) == (409, "idempotency_key_reused")
    assert len(await stack.gateway.ledger.settled()) == 1


@each(WITH_ECHO)
async def test_the_queue_is_fair_to_it(stack: Rig, operation: Operation) -> None:
    """A tenant that waits with one request of this operation goes before another tenant's second
    one."""
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = STALLED
    ended: list[str] = []
    chat = WITH_ECHO.named("chat")

    async def run(name: str, key: str, one: Operation) -> None:
        assert (await ask(stack, one, key=key)).status_code == 200
        ended.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run("running", "acme", chat))
        await until(lambda: stack.engine.stats().running)
        for i in range(3):
            tasks.create_task(run(f"acme {i}", "acme", operation))
            await until(lambda count=i + 1: stack.agent.reports.stats().queued == count)  # type: ignore[misc]
        tasks.create_task(run("globex", "globex", operation))
        await until(lambda: stack.agent.reports.stats().queued == 4)
        stack.engine.behaviour = Behaviour()
    assert ended.index("globex") < ended.index("acme 1") < ended.index("acme 2")


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/v1/moderations", "chat model"),
        ("/v1/responses/compact", "`truncation`"),
        ("/v1/chat/completions/batch", "`/v1/batches`"),
        ("/v2/embed", "`/v1/embeddings`"),
        ("/generative_scoring", "`logprobs`"),
        ("/version", "`system_fingerprint`"),
    ],
)
async def test_an_unknown_path_names_the_supported_ones(
    stack: Rig, path: str, instead: str
) -> None:
    async with stack.gateway.client() as client:
        answer = await client.post(path, json={"input": "x"})
    assert answer.status_code == 404
    assert instead in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "operation"), [(path, one) for one in WITH_ECHO for path in one.also_at]
)
async def test_it_is_also_at_the_paths_of_vllms_server(
    stack: Rig, path: str, operation: Operation
) -> None:
    body = EXAMPLES[operation.name].body()
    async with stack.gateway.client("acme") as client:
        answer = await client.post(path, json=body)
        assert (await client.get(path)).status_code == 405
    assert answer.json().keys() == (await ask(stack, operation)).json().keys()
