"""A large body is handled a pass at a time, and other tasks run between two passes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.errors import InvalidRequest
from inference.gateway.exchanges.exchange import Exchange
from inference.gateway.loop_iteration import LARGE_BYTES, LoopIteration, count, pause
from inference.operations.bodies.shape import PART_BYTES, BodyShape
from inference.operations.chat import Chat
from inference.operations.estimate import Estimate
from inference.operations.operation import Call
from inference.operations.registry import OperationRegistry
from tests.inference.rig import agent_on, chat, gateway
from tests.inference.samples import MODEL


class Counting(BodyShape):
    """Sees that each part is counted in an iteration of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []
        self._last: LoopIteration | None = None

    def feed(self, part: bytes) -> None:
        assert self._last is None or self._last.is_over
        self._last = LoopIteration()
        self.parts.append(len(part))
        super().feed(part)


def exchange_of(body: bytes) -> Exchange:
    """Whose body arrives whole."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        raise AssertionError(message)

    return Exchange({"method": "POST", "path": "/", "headers": []}, receive, send)


async def test_a_body_that_arrives_whole_is_counted_in_parts() -> None:
    shape, body = Counting(), b'"' + b"a" * (3 * PART_BYTES - 1) + b'"'
    assert await exchange_of(body).body(len(body), admit=partial(count, shape=shape)) == body
    assert shape.parts == [PART_BYTES] * 3 + [1]


async def test_nothing_is_counted_after_a_refusal() -> None:
    shape = Counting()
    with pytest.raises(InvalidRequest, match="values"):
        await exchange_of(b"[" * (9 * PART_BYTES)).body(1 << 20, admit=partial(count, shape=shape))
    assert shape.parts == [PART_BYTES]


@pytest.mark.parametrize(("size", "over"), [(LARGE_BYTES - 1, False), (LARGE_BYTES, True)])
async def test_others_run_after_a_pass_over_a_large_body(size: int, *, over: bool) -> None:
    tick = LoopIteration()
    await pause(size)
    assert tick.is_over == over


class Parsed(Chat):
    """Notes whether others ran between parsing a body and using it."""

    def __init__(self) -> None:
        self.others_ran: list[bool] = []

    def parse(self, body: bytes) -> Call:
        self._tick = LoopIteration()
        return super().parse(body)

    def estimate(self, call: Call, prompt_tokens: int, max_model_len: int) -> Estimate:
        self.others_ran.append(self._tick.is_over)
        return super().estimate(call, prompt_tokens, max_model_len)


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
async def test_a_body_is_parsed_and_sent_in_two_iterations(tmp_path: Path, size: int) -> None:
    operation = Parsed()
    options = {"operations": OperationRegistry([operation]), "max_body_bytes": 2 * LARGE_BYTES}
    async with gateway(**options) as one, agent_on(SyntheticEngine(MODEL), tmp_path, [one]):
        body = json.dumps(chat(content="a" * size, max_tokens=1)).encode()
        async with one.client() as client:
            answer: httpx.Response = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == (200 if size < LARGE_BYTES else 400)
    assert operation.others_ran == [size >= LARGE_BYTES]
