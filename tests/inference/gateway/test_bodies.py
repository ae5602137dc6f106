"""No process keeps a request's body while its answer is generated, except for a move."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from tests.inference.rig import HANGS_S, Gateway, agent_on, chat, gateway, until
from tests.inference.samples import MODEL

BODY_BYTES = 1 << 20
ROOMY = msgspec.structs.replace(MODEL, max_model_len=BODY_BYTES, kv_tokens=2 * BODY_BYTES)
"""A model whose context holds the body as one prompt."""
STALLED_LATER = Behaviour(stall_after_tokens=3)


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    """Traces every allocation of Python."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@asynccontextmanager
async def sent(
    one: Gateway, head: bytes = b"", **fields: Any
) -> AsyncIterator[asyncio.StreamReader]:
    """A connection that has sent a large request and dropped its body, which client libraries
    keep."""
    host, port = one.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        body = json.dumps(chat(content="x" * BODY_BYTES, **fields)).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\n"
            b"Content-Length: %d\r\n%b\r\n" % (len(body), head) + body
        )
        del body
        await writer.drain()
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("head", [b"", b"Idempotency-Key: order 17\r\n"], ids=["plain", "once"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_body_is_gone_when_the_engine_has_it(
    tmp_path: Path, stream: bool, head: bytes
) -> None:
    """Between the gateway's socket and the engine less than a tenth of the body stays allocated."""
    engine = SyntheticEngine(ROOMY)
    bounds = {"max_body_bytes": 2 * BODY_BYTES, "kept_bytes": 0}
    async with gateway(**bounds) as one, agent_on(engine, tmp_path, [one]):
        async with sent(one, max_tokens=1) as reader:  # fills the prefix cache with this prompt
            await reader.readuntil(b'"usage"')
        async with one.client() as client, asyncio.timeout(HANGS_S):
            before = await settled(client)
            engine.behaviour = STALLED_LATER
            generated = engine.stats().completion_tokens
            async with sent(one, head, stream=stream, max_tokens=50, ignore_eos=True) as reader:
                await until(lambda: engine.stats().completion_tokens > generated)
                # The gateway learns a little later what the engine's cache has gained.
                while await settled(client) - before >= BODY_BYTES / 10:
                    continue
                engine.behaviour = Behaviour()
                await reader.readuntil(b"[DONE]" if stream else b'"usage"')
    await engine.close()


async def settled(client: httpx.AsyncClient) -> int:
    """Allocated bytes after another small request, because a websocket keeps its last message until
    the next one arrives."""
    answer = await client.post("/v1/chat/completions", json=chat(max_tokens=2))
    assert answer.is_success
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
