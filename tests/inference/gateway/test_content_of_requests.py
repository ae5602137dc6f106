"""The content that requests on the token path leave to be stored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from inference.gateway.lines.frames import OpenBatch
from inference.gateway.lines.seals import seal
from inference.gateway.measuring.content import KeptContent
from tests.inference.gateway.operations.test_lines import CREATED_AT, SECRET, connected, lines_of
from tests.inference.gateway.operations.test_responses_socket import socket, turn
from tests.inference.operations.examples import SAID
from tests.inference.rig import Rig, chat, rig, until


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def taken(stack: Rig) -> list[KeptContent]:
    found = stack.gateway.hub.contents.take(10, 1 << 20)
    return [msgspec.json.decode(one.text, type=KeptContent) for one in found]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_and_its_answer_are_recorded(stack: Rig, stream: bool) -> None:
    stack.gateway.keys.keeping.add("acme")
    body = chat(content="Say it.", stream=stream)
    async with stack.gateway.client() as acme, stack.gateway.client("globex") as globex:
        answer = await acme.post("/v1/chat/completions", json=body)
        await globex.post("/v1/chat/completions", json=body)
        refused = await acme.post("/v1/chat/completions", json={**body, "model": "no-such"})
    assert refused.status_code == 404
    (kept,) = taken(stack)
    assert (kept.operation, json.loads(kept.request)) == ("chat", body) and not kept.cut
    if stream:
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        deltas = [json.loads(one)["choices"][0]["delta"] for one in events]
        said = "".join(delta.get("content") or "" for delta in deltas)
    else:
        said = answer.json()["choices"][0]["message"]["content"]
    assert kept.text == said != ""
    assert stack.gateway.hub.contents.space.total == 0


async def test_each_turn_on_a_socket_is_recorded(stack: Rig) -> None:
    stack.gateway.keys.keeping.add("acme")
    async with socket(stack) as acme, socket(stack, "globex") as globex:
        first = await turn(acme)
        await turn(globex)
        await turn(acme, input="And then?", previous_response_id=first["id"])
    asked = [json.loads(kept.request)["input"] for kept in taken(stack)]
    assert len(asked) == 2 and asked[0] == SAID
    assert [item["role"] for item in asked[1]] == ["user", "assistant", "user"]


async def test_lines_of_batches_are_recorded(stack: Rig) -> None:
    stack.gateway.keys.keeping.add("acme")
    of_globex = OpenBatch("batch_2", 6, CREATED_AT, "chat", "")
    async with lines_of(stack) as lines, connected(lines) as worker:
        worker.open()
        worker.open(**msgspec.structs.asdict(of_globex) | {"seal": seal(SECRET, of_globex)})
        worker.ask(1, content="Line one.")
        worker.ask(2, batch="batch_2")
        answers = [await worker.answer(number) for number in (1, 2)]
    assert [answer.status for answer in answers] == [200, 200]
    (kept,) = taken(stack)
    assert kept.text and "Line one." in kept.request


async def test_the_delivered_part_of_an_aborted_answer_is_recorded(stack: Rig) -> None:
    stack.gateway.keys.keeping.add("acme")
    async with stack.gateway.client() as client:
        body = chat(content="Tell me everything.", stream=True, max_tokens=5000)
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_bytes():
                break
    hub, found = stack.gateway.hub, list[KeptContent]()
    await until(lambda: found.extend(taken(stack)) or found)
    assert found[0].text and hub.contents.space.total == 0
