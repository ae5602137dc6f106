"""Refused bodies cost little, are counted, and delay no other tenant."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.errors import RateLimitExceeded
from inference.gateway.exchanges import bodies
from inference.link import versions
from inference.link.accounts import Usage
from inference.link.engine_info import AdapterRef
from inference.link.wire import MAX_BODY_BYTES, MAX_FRAME_BYTES, PROTOCOL_VERSION, Submit
from inference.operations.chat import Chat
from inference.operations.completion import COMPLETION
from inference.operations.operation import Call
from inference.operations.registry import OperationRegistry
from inference.pacing import FREE, MAX_WAIT_S, SPACING_S
from tests.inference.rig import Rig, agent_on, chat, gateway, rig
from tests.inference.samples import MODEL

CHAT = "/v1/chat/completions"


@cache
def many_keys() -> bytes:
    """A body of the largest allowed size."""
    return json.dumps(chat() | {f"k{i}": i for i in range(600_000)}).encode()


class Watched(Chat):
    """Counts how often a body is parsed, at the gateway and at the agent."""

    def __init__(self) -> None:
        self.parsed = self.read_bodies = 0

    def parse(self, body: bytes) -> Call:
        self.parsed += 1
        return super().parse(body)

    def read(self, body: bytes, max_tokens: int | None) -> dict[str, Any]:
        self.read_bodies += 1
        return super().read(body, max_tokens)


@asynccontextmanager
async def watched(root: Path) -> AsyncIterator[tuple[Rig, Watched]]:
    operation = Watched()
    registry = OperationRegistry([operation, COMPLETION])
    engine = SyntheticEngine(MODEL)
    async with (
        gateway(operations=registry, max_body_bytes=len(many_keys())) as one,
        agent_on(engine, root, [one], operations=registry) as made,
    ):
        yield made, operation
    await engine.close()


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def test_what_holds_too_much_is_parsed_by_nobody(tmp_path: Path) -> None:
    """Eight connections send it repeatedly, while another tenant's streams arrive complete."""
    async with (
        watched(tmp_path) as (stack, operation),
        stack.gateway.client("acme") as acme,
        stack.gateway.client("globex") as globex,
    ):

        async def attack() -> list[int]:
            posts = [await acme.post(CHAT, content=many_keys()) for _ in range(4)]
            return [post.status_code for post in posts]

        async def ask() -> str:
            answer = await globex.post(CHAT, json=chat(stream=True, max_tokens=8))
            assert answer.status_code == 200
            return answer.text

        *attacks, _ = await asyncio.gather(*(attack() for _ in range(8)), ask())
        texts = [await ask() for _ in range(3)]
    assert {status for statuses in attacks for status in statuses} <= {400, 429}
    assert all(text.endswith("data: [DONE]\n\n") for text in texts)
    assert operation.parsed == operation.read_bodies == 4, "those of the other tenant"


async def test_a_refusal_says_what_is_too_much(tmp_path: Path) -> None:
    async with watched(tmp_path) as (stack, _), stack.gateway.client() as client:
        keys = await client.post(CHAT, content=many_keys())
        deep = await client.post(CHAT, content=b'{"a":' * 200 + b"1" + b"}" * 200)
        again = await client.post(CHAT, json=chat(max_tokens=1))
    assert (keys.status_code, deep.status_code, again.status_code) == (400, 400, 200)
    assert "more than 50000 values" in keys.json()["error"]["message"]
    assert "128 levels" in deep.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (json.dumps(chat(temperature="hot")).encode(), 400),
        (json.dumps(chat("nothing")).encode(), 404),
        (b"[" * 200, 400),
        (b"x" * 100_001, 413),
    ],
)
async def test_an_invalid_request_counts_as_one(stack: Rig, body: bytes, status: int) -> None:
    limits = stack.gateway.limits
    limits.tokens_left = 1000
    async with stack.gateway.client() as client:
        answer = await client.post(CHAT, content=body)
    assert answer.status_code == status
    assert list(limits.settled.values()) == [Usage()]
    assert f"req_{next(iter(limits.settled))}" == answer.headers["x-request-id"]
    assert limits.tokens_left == 1000, "of tokens it takes none"
    assert answer.headers["x-ratelimit-remaining-requests"]


async def test_one_that_an_engine_refuses_counts_once(stack: Rig) -> None:
    async with stack.gateway.client() as client:
        answer = await client.post(CHAT, json=chat(messages=[{"role": "user"}]))
    assert answer.status_code == 400
    assert len(stack.gateway.limits.settled) == 1


async def test_a_key_that_is_none_counts_nowhere(stack: Rig) -> None:
    async with stack.gateway.client("wrong") as client:
        assert (await client.post(CHAT, content=b"{")).status_code == 401
    assert not stack.gateway.limits.settled


async def test_beyond_the_limit_an_invalid_request_is_told_of_that(stack: Rig) -> None:
    stack.gateway.limits.full = True
    async with stack.gateway.client() as client:
        answer = await client.post(CHAT, content=b"{")
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, RateLimitExceeded.code)
    assert answer.headers["retry-after"] == "3"


async def test_a_tenant_of_invalid_requests_is_slowed_and_no_other_is(tmp_path: Path) -> None:
    async with (
        watched(tmp_path) as (stack, operation),
        stack.gateway.client("acme") as acme,
        stack.gateway.client("globex") as globex,
    ):
        began = time.monotonic()

        async def flood() -> list[httpx.Response]:
            return [await acme.post(CHAT, content=b"{") for _ in range(20)]

        floods, others = await asyncio.gather(
            asyncio.gather(*(flood() for _ in range(20))),
            asyncio.gather(*(globex.post(CHAT, json=chat(max_tokens=1)) for _ in range(20))),
        )
        took_s = time.monotonic() - began
    assert {answer.status_code for answer in others} == {200}
    answers = [answer for answers in floods for answer in answers]
    slowed = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {400, 429}
    assert "invalid" in slowed[0].json()["error"]["message"]
    assert slowed[0].headers["retry-after"] == "1"
    read = operation.parsed - len(others)
    at_once = 20  # requests that began before the first refusal
    assert read <= FREE + 1 + at_once + (took_s + MAX_WAIT_S) / SPACING_S


async def test_bodies_that_arrive_slowly_fill_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant gets a quarter of the memory for arriving bodies: here, one body of the largest
    size."""
    monkeypatch.setattr(bodies, "ARRIVING_BYTES", 0)
    async with rig(tmp_path) as stack:
        host, port = stack.gateway.url.removeprefix("http://").split(":")

        async def half_sent() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\n"
                b"Content-Length: 90000\r\n\r\n" + b" " * 60_000
            )
            await writer.drain()
            return reader, writer

        (first, one), (second, other) = [await half_sent() for _ in range(2)]
        other.write(b" " * 30_000)  # a refusal is sent once the body is complete
        assert b" 503 " in await second.readline()
        async with stack.gateway.client("globex") as client:
            assert (await client.post(CHAT, json=chat(max_tokens=1))).status_code == 200
        one.write(b" " * 30_000)
        assert b" 400 " in await first.readline()
        async with stack.gateway.client("acme") as client:
            answer = await client.post(CHAT, json=chat(content="x" * 60_000, max_tokens=1))
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        for writer in (one, other):
            writer.close()


def test_the_longest_body_fits_into_a_frame() -> None:
    digest = "f" * 64
    submit = Submit(
        id="i" * 100,
        kind="completion",
        body=b"x" * MAX_BODY_BYTES,
        model="m" * 10_000,
        tenant="t" * 1000,
        salt="s" * 1000,
        adapter=AdapterRef("n" * 1000, digest, 512, ("m" * 100,) * 1000),
    )
    frame = versions.encode(submit, PROTOCOL_VERSION)
    assert frame is not None
    assert len(frame) <= MAX_FRAME_BYTES
