"""Responses in the background, through a whole gateway and a synthetic engine: as OpenAI's SDK
requests them, and as a worker has them run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError
from openai.types.responses import Response

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.errors import EngineFailed
from inference.gateway.lines import background
from inference.gateway.lines.frames import AskLine, OpenBatch, WithdrawBatch
from inference.gateway.lines.seals import BACKGROUND, holds, line_id
from inference.gateway.lines.server import Lines
from inference.link.accounts import first_attempt
from tests.inference.gateway.operations.test_lines import (
    RUNNING,
    SECRET,
    Worker,
    connected,
    lines_of,
)
from tests.inference.gateway.operations.test_stored_responses import sdk
from tests.inference.operations.examples import SAID, responses
from tests.inference.rig import STALLED, Rig, rig, until
from tests.inference.samples import MODEL

PATH = "/v1/responses"
ANSWER = f"{MODEL.name}: {SAID}"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, max_running=RUNNING) as made:
        made.gateway.keys.keeping.add("acme")
        yield made


@pytest.fixture
async def client(stack: Rig) -> AsyncIterator[AsyncOpenAI]:
    async with sdk(stack) as made:
        yield made


@pytest.fixture
async def lines(stack: Rig) -> AsyncIterator[Lines]:
    async with lines_of(stack) as made:
        yield made


async def queue(client: AsyncOpenAI, **fields: Any) -> Response:
    given: dict[str, Any] = {"model": MODEL.name, "input": SAID, "background": True}
    made: Response = await client.responses.create(**(given | fields))
    return made


def ask(stack: Rig, worker: Worker, response: Response, turn: int = 1024, number: int = 1) -> str:
    """Ask for it as a worker that has leased its line; returns the id of the line's batch."""
    run = stack.gateway.stored.runs[4, response.id.removeprefix("resp_")]
    one = run.queued
    worker.say(OpenBatch(one.batch, 4, one.created_at.timestamp(), "responses", one.seal))
    worker.say(AskLine(one.batch, number, turn, b""))
    return one.batch


def behave(stack: Rig, behaviour: Behaviour) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = behaviour


def room_taken(stack: Rig) -> int:
    """Bytes of captured content that remain once everything that is ready has been taken."""
    contents = stack.gateway.hub.contents
    contents.take(100, 1 << 30)
    return contents.space.total


async def test_it_is_answered_at_once_and_run_later(
    stack: Rig, client: AsyncOpenAI, lines: Lines
) -> None:
    made = await queue(client, metadata={"a": "b"}, instructions="Rhyme.")
    assert (made.status, made.background, made.output, made.usage) == ("queued", True, [], None)
    assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
    async with connected(lines) as worker:
        batch = ask(stack, worker, made)
        said = await worker.answer(1)
        assert (said.status, said.body, said.sent) == (200, b"", True)
        (entry,) = await stack.gateway.ledger.settled(1)
    ended = await client.responses.retrieve(made.id)
    assert (ended.status, ended.output_text, ended.background) == ("completed", ANSWER, True)
    same = ("id", "created_at", "metadata", "instructions", "model")
    assert [getattr(ended, name) for name in same] == [getattr(made, name) for name in same]
    assert ended.usage is not None and ended.usage.output_tokens == said.usage.completion_tokens
    assert (entry.id, entry.attempt) == (line_id(batch, 1), first_attempt(1024))
    assert made.id == f"resp_{entry.id}" and entry.usage == said.usage
    async with stack.gateway.client() as one:  # checked against the document and the SDK's types
        assert (await one.get(f"{PATH}/{made.id}")).json() == ended.to_dict()
        listed = (await one.get(f"{PATH}/{made.id}/input_items")).json()
    assert [item["content"][0]["text"] for item in listed["data"]] == [SAID]
    assert not lines.live and not room_taken(stack)


async def test_it_can_continue_and_be_continued(
    stack: Rig, client: AsyncOpenAI, lines: Lines
) -> None:
    first = await client.responses.create(model=MODEL.name, input=SAID)
    made = await queue(client, input="And then?", previous_response_id=first.id)
    assert made.previous_response_id == first.id
    with pytest.raises(BadRequestError, match="has no output yet"):
        await client.responses.create(model=MODEL.name, input="x", previous_response_id=made.id)
    await client.responses.delete(first.id)
    async with connected(lines) as worker:
        ask(stack, worker, made)
        await worker.answer(1)
    ended = await client.responses.retrieve(made.id)
    asked = [{"role": "user", "content": SAID}, *first.to_dict()["output"]]  # type: ignore[misc]
    asked.append({"role": "user", "content": "And then?"})
    whole = await client.responses.create(model=MODEL.name, input=asked, store=False)
    assert ended.output_text == whole.output_text and ended.previous_response_id == first.id
    after = await client.responses.create(
        model=MODEL.name, input="More", previous_response_id=made.id
    )
    assert after.status == "completed"


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"max_output_tokens": 2}, "incomplete"), ({"input": [{"type": "reasoning"}]}, "failed")],
    ids=["cut", "refused by the engine"],
)
async def test_a_background_response_can_end_incomplete_or_failed(
    stack: Rig, client: AsyncOpenAI, lines: Lines, fields: dict[str, Any], status: str
) -> None:
    made = await queue(client, **fields)
    async with connected(lines) as worker:
        ask(stack, worker, made)
        said = await worker.answer(1)
    assert not said.body, "workers read nothing of it"
    ended = await client.responses.retrieve(made.id)
    assert ended.status == status
    assert (ended.error is not None) == (status == "failed")
    if ended.error is not None:
        assert "`input`" in ended.error.message and ended.error.code == "invalid_prompt"
        assert ended.usage is None and ended.output == []
    async with stack.gateway.client() as one:
        assert (await one.get(f"{PATH}/{made.id}")).json() == ended.to_dict()


async def test_it_fails_with_its_key_or_its_engines(stack: Rig, client: AsyncOpenAI) -> None:
    """If no gateway could record the reason, the error is derived from the code that the worker
    wrote."""
    made = await queue(client)
    run = stack.gateway.stored.runs[4, made.id.removeprefix("resp_")]
    run.status, run.code = "failed", EngineFailed.code
    ended = await client.responses.retrieve(made.id)
    assert ended.status == "failed" and ended.error is not None
    assert ended.error.message == EngineFailed().message
    assert ended.error.to_dict()["type"] == EngineFailed.code


async def test_one_that_waits_is_cancelled(stack: Rig, client: AsyncOpenAI, lines: Lines) -> None:
    made = await queue(client)
    for _ in range(2):
        cancelled = await client.responses.cancel(made.id)
        assert (cancelled.status, cancelled.output) == ("cancelled", [])
    async with connected(lines) as worker:
        ask(stack, worker, made)
        assert (await worker.answer(1)).code == "response_not_found"
    assert (await client.responses.retrieve(made.id)).status == "cancelled"
    assert not stack.gateway.ledger.entries


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_cancelling_a_running_response_stops_the_engine(
    stack: Rig, client: AsyncOpenAI, lines: Lines, how: str
) -> None:
    behave(stack, Behaviour(stall_after_tokens=2))
    made = await queue(client)
    async with connected(lines) as worker:
        batch = ask(stack, worker, made)
        await worker.began(1)
        if how == "cancel":
            assert (await client.responses.cancel(made.id)).status == "cancelled"
        else:
            await client.responses.delete(made.id)
        worker.say(WithdrawBatch(batch))  # as when it learnt so by renewing its lease
        (entry,) = await stack.gateway.ledger.settled(1)
        await until(lambda: not stack.gateway.hub.in_flight and not lines.live)
    assert entry.id == line_id(batch, 1) and entry.finish_reason == "cancelled"
    assert not stack.gateway.limits.open and not room_taken(stack)
    if how == "cancel":
        assert (await client.responses.cancel(made.id)).status == "cancelled"
    else:
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(made.id)


async def test_one_that_has_ended_stays_as_it_is(
    stack: Rig, client: AsyncOpenAI, lines: Lines
) -> None:
    made = await queue(client)
    async with connected(lines) as worker:
        ask(stack, worker, made)
        await worker.answer(1)
        again = await client.responses.cancel(made.id)
        assert (again.status, again.output_text) == ("completed", ANSWER)
        ask(stack, worker, made, turn=2048)
        assert (await worker.answer(1)).code == "response_not_found"
    assert len(await stack.gateway.ledger.settled(1)) == 1


async def test_one_whose_worker_is_lost_is_run_again_and_billed_once(
    stack: Rig, client: AsyncOpenAI
) -> None:
    behave(stack, Behaviour(stall_after_tokens=2))
    made = await queue(client)
    async with lines_of(stack) as lines:
        async with connected(lines) as worker:
            ask(stack, worker, made)
            await worker.began(1)
        await stack.gateway.ledger.settled(1)
        behave(stack, Behaviour())
        async with connected(lines) as worker:
            ask(stack, worker, made, turn=2048)
            assert (await worker.answer(1)).status == 200
        entries = stack.gateway.ledger.entries
        await until(lambda: [one.attempt for one in entries.values()] == [first_attempt(2048)])
    assert (await client.responses.retrieve(made.id)).output_text == ANSWER


async def test_an_answer_of_a_lower_turn_is_dropped(stack: Rig, client: AsyncOpenAI) -> None:
    """Such as the answer of a worker that has lost its lease without noticing."""
    behave(stack, STALLED)
    made = await queue(client)
    async with lines_of(stack) as lines, lines_of(stack) as others:
        async with connected(lines) as slow, connected(others) as next_one:
            ask(stack, slow, made)
            await until(lambda: stack.gateway.hub.in_flight)
            stack.gateway.stored.runs[4, made.id.removeprefix("resp_")].turn = 2048
            behave(stack, Behaviour())
            async with sdk(stack) as one:  # lets the engine notice its new behaviour
                await one.responses.create(model=MODEL.name, input=SAID, store=False)
            ask(stack, next_one, made, turn=1024)
            assert (await next_one.answer(1)).code == "response_not_found"
    assert (await client.responses.retrieve(made.id)).status == "queued"


async def test_the_answer_waits_for_the_database(
    stack: Rig, client: AsyncOpenAI, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.0)
    behave(stack, STALLED)
    made = await queue(client)
    async with connected(lines) as worker:
        ask(stack, worker, made)
        await until(lambda: stack.gateway.hub.in_flight)
        stack.gateway.stored.away = True
        behave(stack, Behaviour())
        await stack.gateway.ledger.settled(1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not worker.answers
        stack.gateway.stored.away = False
        assert (await worker.answer(1)).status == 200
    assert (await client.responses.retrieve(made.id)).output_text == ANSWER


async def test_the_same_request_again_is_the_same_response(stack: Rig, client: AsyncOpenAI) -> None:
    headers = {"Idempotency-Key": "a"}
    first = await queue(client, extra_headers=headers)
    assert (await queue(client, extra_headers=headers)).id == first.id
    stack.gateway.answers.rows.clear()  # as if its gateway had died before it answered
    assert (await queue(client, extra_headers=headers)).id == first.id
    stack.gateway.answers.rows.clear()
    other = await queue(client, extra_headers=headers, input="Another")
    assert other.id != first.id
    assert len(stack.gateway.stored.runs) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": False}, "store"),
        ({"stream": True}, "stream"),
        ({"background": "yes"}, "background"),
    ],
)
async def test_what_is_refused(stack: Rig, fields: dict[str, Any], param: str) -> None:
    async with stack.gateway.client() as one:
        answer = await one.post(PATH, json=responses(**({"background": True} | fields)))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not stack.gateway.stored.rows


async def test_a_tenant_without_storage_is_told_how_to_turn_it_on(stack: Rig) -> None:
    async with sdk(stack, "globex") as one:
        with pytest.raises(BadRequestError, match=r"`globex`.*Stored prompts") as caught:
            await queue(one)
    assert caught.value.param == "background"
    assert not stack.gateway.stored.rows


async def test_a_request_beyond_the_bounds_is_refused(
    stack: Rig, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_BYTES", 2000)
    with pytest.raises(APIStatusError, match="2000") as caught:
        await queue(client, input="a" * 2000)
    assert caught.value.status_code == 413
    with pytest.raises(NotFoundError):
        await queue(client, model="nobody's")
    for _ in range(3):
        await queue(client)
    with pytest.raises(RateLimitError):
        await queue(client)
    assert len(stack.gateway.limits.settled) == 6, "each try counts as a request"
    (one, *_) = stack.gateway.stored.runs.values()
    await client.responses.cancel(f"resp_{one.queued.id}")
    stack.gateway.limits.full = True
    with pytest.raises(RateLimitError):
        await queue(client)
    assert len(stack.gateway.stored.runs) == 3


async def test_an_answer_that_is_too_long_fails(
    stack: Rig, client: AsyncOpenAI, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await queue(client)
    monkeypatch.setattr(background, "MAX_BYTES", 500)
    async with connected(lines) as worker:
        ask(stack, worker, made)
        await worker.answer(1)
    ended = await client.responses.retrieve(made.id)
    assert ended.status == "failed" and ended.error is not None
    assert "500 can be stored" in ended.error.message


async def test_it_waits_while_there_is_no_room(
    stack: Rig, client: AsyncOpenAI, lines: Lines
) -> None:
    made = await queue(client)
    space = stack.gateway.hub.contents.space
    space.take(6, 16 << 20)
    space.take(4, 16 << 20)
    async with connected(lines) as worker:
        ask(stack, worker, made)
        said = await worker.answer(1)
        assert said.again_s == background.AGAIN_S and not said.sent
        space.give_back(4, 16 << 20)
        worker.say(AskLine(said.batch, 1, 1024, b""))
        assert (await worker.answer(1)).status == 200


async def test_a_worker_can_ask_for_no_other_line(
    stack: Rig, client: AsyncOpenAI, lines: Lines
) -> None:
    made = await queue(client)
    async with connected(lines) as worker:
        ask(stack, worker, made, number=2)
        assert "one line" in await worker.closed()
    run = stack.gateway.stored.runs[4, made.id.removeprefix("resp_")].queued
    assert run.batch.startswith(BACKGROUND)
    forged = OpenBatch(run.batch, 6, run.created_at.timestamp(), "responses", run.seal)
    assert not holds(SECRET, forged, run.seal)
    async with connected(lines) as worker:
        worker.say(forged)
        assert "Invalid seal" in await worker.closed()


async def test_another_tenants_object_is_not_found(stack: Rig, client: AsyncOpenAI) -> None:
    made = await queue(client)
    stack.gateway.keys.keeping.add("globex")
    async with sdk(stack, "globex") as other:
        for each in (other.responses.retrieve, other.responses.cancel, other.responses.delete):
            with pytest.raises(NotFoundError):
                await each(made.id)
    assert (await client.responses.retrieve(made.id)).status == "queued"
