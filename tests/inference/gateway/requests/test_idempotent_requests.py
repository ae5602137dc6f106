"""`Idempotency-Key` over real sockets, with one and with two gateways."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.errors import ApiKeyRevoked
from inference.gateway.idempotency import digest_of
from inference.interfaces.answers import Claim
from tests.inference.answers import CLAIM_S, MemoryAnswers
from tests.inference.rig import SLOW, STALLED, Gateway, Rig, agent_on, chat, gateway, rig, until
from tests.inference.samples import MODEL

CHAT = "/v1/chat/completions"
KEY = {"Idempotency-Key": "order 17"}
REPLAYED = "idempotent-replayed"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


@asynccontextmanager
async def two_gateways(root: Path, **options: Any) -> AsyncIterator[Rig]:
    """Two gateways with one database, and one slow engine. `options` are passed to the second
    gateway."""
    answers = MemoryAnswers()
    engine = SyntheticEngine(MODEL, SLOW)
    async with gateway(answers=answers) as one, gateway(answers=answers, **options) as other:
        one.hub.gateways = [one.url, other.url]
        async with agent_on(engine, root, [one, other]) as made:
            yield made
    await engine.close()


def behave(stack: Rig, behaviour: Behaviour) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = behaviour


async def post(
    one: Gateway, body: dict[str, Any], key: str = "acme", path: str = CHAT, **headers: str
) -> httpx.Response:
    async with one.client(key) as client:
        return await client.post(path, json=body, headers=KEY | headers)


async def billed(*gateways: Gateway, count: int = 1) -> list[Any]:
    """Wait until the ledgers of these gateways hold `count` entries, and return them, sorted by
    id."""
    entries: dict[str, Any] = {}

    def read() -> bool:
        for one in gateways:
            entries.update(one.ledger.entries)
        return len(entries) >= count

    await until(read)
    return sorted(entries.values(), key=lambda entry: str(entry.id))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_gets_the_same_bytes_and_costs_nothing(stack: Rig, stream: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    body = chat(max_tokens=6, ignore_eos=True, stream=stream, **options)
    first = await post(stack.gateway, body)
    generated = stack.engine.stats().completion_tokens
    second, third = await post(stack.gateway, body), await post(stack.gateway, body)
    assert first.status_code == second.status_code == third.status_code == 200
    assert first.content == second.content == third.content
    for name in ("x-request-id", "content-type"):
        assert first.headers[name] == second.headers[name] == third.headers[name]
    assert first.headers.get("cache-control") == second.headers.get("cache-control")
    assert [REPLAYED in one.headers for one in (first, second, third)] == [False, True, True]
    assert second.headers[REPLAYED] == "true"
    (entry,) = await billed(stack.gateway)
    assert first.headers["x-request-id"] == f"req_{entry.id}"
    assert entry.finish_reason == "length"
    assert stack.engine.stats().completion_tokens == generated == 6
    assert list(stack.gateway.limits.settled) == [entry.id]
    assert stack.gateway.limits.open == {}


async def test_the_sdk_reads_a_replay(stack: Rig) -> None:
    texts = []
    async with AsyncOpenAI(base_url=f"{stack.gateway.url}/v1", api_key="acme") as client:
        for _ in range(2):
            stream = await client.chat.completions.create(
                model=MODEL.name,
                messages=[{"role": "user", "content": "Hello"}],
                stream=True,
                extra_headers=KEY,
            )
            texts.append([chunk.choices[0].delta.content async for chunk in stream])
    assert texts[0] == texts[1]
    assert any(texts[0])
    assert len(await billed(stack.gateway)) == 1


async def test_completions_too_and_another_body_or_path_is_409(stack: Rig) -> None:
    body = {"model": MODEL.name, "prompt": "Hello", "max_tokens": 2}
    both = body | chat()
    first = await post(stack.gateway, both, path="/v1/completions")
    again = await post(stack.gateway, both, path="/v1/completions")
    other_path = await post(stack.gateway, both)
    other_body = await post(stack.gateway, body, path="/v1/completions")
    assert first.content == again.content
    for refused in (other_path, other_body):
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "idempotency_key_reused"
    assert len(await billed(stack.gateway)) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "caf\xe9"])
async def test_a_bad_key_names_the_header(stack: Rig, key: str) -> None:
    async with stack.gateway.client() as client:
        headers = {b"Idempotency-Key": key.encode("latin-1")}
        answer = await client.post(CHAT, json=chat(), headers=headers)
    assert answer.status_code == 400
    assert "`Idempotency-Key`" in answer.json()["error"]["message"]
    assert stack.gateway.answers.asked == 0


async def test_the_same_at_once_on_two_gateways_is_one_request(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as stack:
        one, other = stack.gateways
        body = chat(max_tokens=20, ignore_eos=True, stream=True)
        first = asyncio.create_task(post(one, body))
        await until(lambda: stack.engine.stats().running)
        found = await asyncio.gather(*(post((one, other)[i % 2], body) for i in range(10)))
        assert {answer.content for answer in found} == {(await first).content}
        assert {answer.headers["x-request-id"] for answer in found} == {
            (await first).headers["x-request-id"]
        }
        assert all(REPLAYED in answer.headers for answer in found)
        (entry,) = await billed(one, other)
        assert entry.usage.completion_tokens == stack.engine.stats().completion_tokens == 20


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_lost_its_connection_gets_the_answer_by_a_retry(
    tmp_path: Path, stream: bool, elsewhere: bool
) -> None:
    async with two_gateways(tmp_path) as stack:
        one, other = stack.gateways
        body = chat(max_tokens=40, ignore_eos=True, stream=stream)
        lost = asyncio.create_task(post(one, body))
        await until(lambda: stack.engine.stats().running)
        lost.cancel()
        await asyncio.wait([lost])
        retry = await post(other if elsewhere else one, body)
        (entry,) = await billed(one, other)
        assert (entry.finish_reason, entry.usage.completion_tokens) == ("length", 40)
        assert retry.headers["x-request-id"] == f"req_{entry.id}"
        if stream:
            assert retry.content.endswith(b"data: [DONE]\n\n")
        else:
            assert retry.json()["usage"]["completion_tokens"] == 40


async def twice(stack: Rig) -> list[asyncio.Task[httpx.Response]]:
    """Send the same request to both gateways. The first one's runs on the stalled engine; the
    second one's waits for it."""
    one, other = stack.gateways
    behave(stack, STALLED)
    body = chat(max_tokens=4, ignore_eos=True)
    first = asyncio.create_task(post(one, body))
    await until(lambda: stack.engine.stats().running)
    asked = other.answers.asked
    waits = asyncio.create_task(post(other, body))
    await until(lambda: other.answers.asked > asked)
    return [first, waits]


async def test_a_waiting_retry_that_leaves_ends_nothing(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as stack:
        one, other = stack.gateways
        first, waits = await twice(stack)
        waits.cancel()
        await asyncio.wait([waits])
        behave(stack, SLOW)
        assert (await first).json()["usage"]["completion_tokens"] == 4
        assert len(await billed(one, other)) == 1


async def test_a_wait_ends_with_the_request_timeout(tmp_path: Path) -> None:
    async with two_gateways(tmp_path, timeout_s=0.05) as stack:
        one, other = stack.gateways
        behave(stack, STALLED)
        body = chat(max_tokens=2, ignore_eos=True)
        first = asyncio.create_task(post(one, body))
        await until(lambda: stack.engine.stats().running)
        late = await post(other, body)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "generation_timeout")
        behave(stack, SLOW)
        assert (await first).is_success


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_broke_is_not_kept(stack: Rig, stream: bool) -> None:
    behave(stack, replace(SLOW, fail_after_tokens=3))
    body = chat(max_tokens=6, ignore_eos=True, stream=stream)
    broken = await post(stack.gateway, body)
    if stream:
        last = broken.text.strip().splitlines()[-1].removeprefix("data: ")
        assert json.loads(last)["error"]["code"] == "engine_failed"
    else:
        assert broken.status_code == 500
    assert stack.gateway.answers.rows == {}
    behave(stack, SLOW)
    again, replay = await post(stack.gateway, body), await post(stack.gateway, body)
    assert REPLAYED not in again.headers
    assert again.content == replay.content
    assert again.headers["x-request-id"] != broken.headers["x-request-id"]
    broken_entry, entry = await billed(stack.gateway, count=2)
    assert broken_entry.usage.completion_tokens <= 3
    assert entry.usage.completion_tokens == 6


async def test_refusals_release_the_key(stack: Rig) -> None:
    stack.gateway.limits.tokens_left = 0
    refused = await post(stack.gateway, chat(max_tokens=2))
    assert refused.status_code == 429
    stack.gateway.limits.tokens_left = None
    unknown = await post(stack.gateway, chat("nothing"))
    too_long = await post(stack.gateway, chat(content="word " * 15_000))
    assert (unknown.status_code, too_long.status_code) == (404, 400)
    assert stack.gateway.answers.rows == {}
    assert (await post(stack.gateway, chat(max_tokens=2))).is_success


async def test_a_revoked_key_ends_its_request_and_nothing_is_kept(stack: Rig) -> None:
    behave(stack, SLOW)
    body = chat(max_tokens=1000, ignore_eos=True, stream=True)
    request = asyncio.create_task(post(stack.gateway, body))
    await until(lambda: stack.engine.stats().completion_tokens)
    stack.gateway.keys.revoke(len("acme"), ApiKeyRevoked())
    assert b"api_key_revoked" in (await request).content
    assert stack.gateway.answers.rows == {}
    (entry,) = await billed(stack.gateway)
    assert entry.finish_reason == "api_key_revoked"


async def test_a_replay_is_for_keys_that_may_infer_alone(stack: Rig) -> None:
    body = chat(max_tokens=2)
    assert (await post(stack.gateway, body)).is_success
    assert (await post(stack.gateway, body, "acme:usage:read")).status_code == 403
    assert (await post(stack.gateway, body, "wrong")).status_code == 401


async def test_one_whose_key_was_revoked_while_it_waited_gets_nothing(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as stack:
        other = stack.gateways[1]
        first, waits = await twice(stack)
        other.keys.revoked.add("acme")
        behave(stack, SLOW)
        assert (await first).is_success
        assert (await waits).status_code == 401


async def test_without_the_database_it_is_503_with_the_header_alone(stack: Rig) -> None:
    stack.gateway.answers.away = True
    refused = await post(stack.gateway, chat(max_tokens=2))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    asked = stack.gateway.answers.asked
    async with stack.gateway.client() as client:
        assert (await client.post(CHAT, json=chat(max_tokens=2))).is_success
    assert stack.gateway.answers.asked == asked
    assert len(await billed(stack.gateway)) == 1


async def waiting_for_another(stack: Rig, body: dict[str, Any]) -> asyncio.Task[httpx.Response]:
    """A request that waits, because its idempotency key is claimed by a gateway that never reports
    again."""
    request = httpx.Request("POST", "http://x", json=body)
    digest = await digest_of(CHAT, request.content)
    await stack.gateway.answers.claim(Claim(len("acme"), "order 17", digest, "dead"))
    asked = stack.gateway.answers.asked
    waits = asyncio.create_task(post(stack.gateway, body))
    await until(lambda: stack.gateway.answers.asked > asked + 1)
    return waits


@pytest.mark.parametrize("stream", [False, True])
async def test_waiting_retries_get_a_retryable_error_at_shutdown(stack: Rig, stream: bool) -> None:
    waits = await waiting_for_another(stack, chat(stream=stream))
    stack.gateway.server.should_exit = True
    answer = await waits
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "service_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert "retry" in error["message"]


async def test_a_dead_gateways_request_is_made_again(stack: Rig) -> None:
    waits = await waiting_for_another(stack, chat(max_tokens=2))
    stack.gateway.answers.now += CLAIM_S
    assert (await waits).is_success
    assert len(await billed(stack.gateway)) == 1
