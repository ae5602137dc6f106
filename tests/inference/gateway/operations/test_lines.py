"""Lines of batches at a gateway: which tenant they belong to, what they wait for, and what is
billed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.errors import ApiKeyRevoked, RateLimitExceeded
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.lines.background import Background
from inference.gateway.lines.frames import (
    AskLine,
    LineAnswer,
    LineNews,
    OpenBatch,
    WithdrawBatch,
    encode,
    to_worker,
)
from inference.gateway.lines.line_queue import AHEAD
from inference.gateway.lines.seals import line_id, seal
from inference.gateway.lines.server import Lines, WaitingLine
from inference.interfaces.directory import Grant, ResolvedTarget, TrafficRoute
from inference.link.accounts import first_attempt
from inference.operations.operation import Operation
from inference.operations.registry import OPERATIONS
from tests.inference.operations.examples import EXAMPLES
from tests.inference.rig import INTERNAL_TOKEN, STALLED, WORKER_TOKEN, Rig, chat, rig, until
from tests.inference.samples import MODEL

SECRET = INTERNAL_TOKEN
CREATED_AT = 1795370511.25
HANGS_S = 60.0
RUNNING = 4
"""Lines that the engine runs at a time."""


class Worker:
    """A worker's end of the socket."""

    def __init__(self, token: str = WORKER_TOKEN) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        self.scope = {"type": "websocket", "headers": headers}
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.said.put_nowait({"type": "websocket.connect"})
        self.begun: set[int] = set()
        self.answers: dict[int, LineAnswer] = {}

    def say(self, message: msgspec.Struct) -> None:
        self.say_bytes(encode(message))

    def say_bytes(self, message: bytes) -> None:
        self.said.put_nowait({"type": "websocket.receive", "bytes": message})

    def hang_up(self) -> None:
        self.said.put_nowait({"type": "websocket.disconnect"})

    def open(self, operation: str = "chat", **changed: Any) -> None:
        """Open the batch with the console's seal; `changed` fields are altered after sealing."""
        opening = OpenBatch("batch_1", 4, CREATED_AT, operation, "")
        opening = msgspec.structs.replace(opening, seal=seal(SECRET, opening))
        self.say(msgspec.structs.replace(opening, **changed))

    def ask(self, number: int, turn: int = 1024, batch: str = "batch_1", **body: Any) -> None:
        self.ask_for(chat(**body), number, turn, batch)

    def ask_for(
        self, body: dict[str, Any], number: int, turn: int = 1024, batch: str = "batch_1"
    ) -> None:
        self.say(AskLine(batch, number, turn, json.dumps(body).encode()))

    async def closed(self) -> str:
        """The reason with which the gateway closed the socket."""
        while (message := await self._next())["type"] != "websocket.close":
            pass
        return str(message["reason"])

    async def answer(self, number: int) -> LineAnswer:
        """Wait for the answer to this line and remove it from `answers`."""
        while number not in self.answers:
            self._take(await self._next())
        return self.answers.pop(number)

    async def began(self, count: int) -> set[int]:
        while len(self.begun) < count:
            self._take(await self._next())
        return self.begun

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(HANGS_S):
            return await self.heard.get()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "websocket.send":
            news = to_worker.decode(message["bytes"])
            assert isinstance(news, LineNews)
            self.begun |= {number for _, number in news.begun}
            self.answers |= {one.number: one for one in news.answers}


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, max_running=RUNNING) as made:
        yield made


@asynccontextmanager
async def lines_of(one: Rig) -> AsyncIterator[Lines]:
    keys, hub = one.gateway.keys, one.gateway.hub
    dispatcher = Dispatcher(hub, keys, one.gateway.limits, timeout_s=300.0)
    yield Lines(
        dispatcher,
        keys,
        hub,
        Background(one.gateway.stored, keys, dispatcher.space, secret=SECRET),
        token=WORKER_TOKEN,
        secret=SECRET,
        max_body_bytes=10_000,
    )


@asynccontextmanager
async def connected(lines: Lines, worker: Worker | None = None) -> AsyncIterator[Worker]:
    worker = worker or Worker()

    async def send(message: dict[str, Any]) -> None:
        worker.heard.put_nowait(message)

    running = asyncio.create_task(lines(worker.scope, worker.said.get, send))
    try:
        yield worker
    finally:
        worker.hang_up()
        async with asyncio.timeout(HANGS_S):
            await running


async def test_a_line_is_answered_in_its_lane_and_billed_by_its_id(one: Rig) -> None:
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.open()
        worker.ask(1)
        worker.ask(2, content="Bye")
        answers = [await worker.answer(number) for number in (1, 2)]
        assert [answer.status for answer in answers] == [200, 200]
        body = json.loads(answers[1].body)
        assert body["choices"][0]["message"]["content"] == f"{MODEL.name}: Bye"
        entries = await one.gateway.ledger.settled(2)
        assert {answer.usage for answer in answers} == {entry.usage for entry in entries}
    ids = {line_id("batch_1", number) for number in (1, 2)}
    assert {entry.id for entry in entries} == ids
    assert {entry.attempt for entry in entries} == {first_attempt(1024)}
    assert {entry.account.started_at for entry in entries} == {CREATED_AT}
    assert one.gateway.limits.settled.keys() == {f"{id}.1024" for id in ids}


async def test_a_line_that_names_a_route_is_answered_by_an_option(one: Rig) -> None:
    option = ResolvedTarget("small", MODEL.name, one.adapter("acme", "small", 1), 1)
    one.gateway.keys.routes["acme", "auto"] = TrafficRoute("auto", [option, None], 1)
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.open()
        worker.ask(1, model="auto")
        answer = await worker.answer(1)
        (entry,) = await one.gateway.ledger.settled()
    assert json.loads(answer.body)["model"] == "small"
    assert (entry.model, entry.account.route) == ("small", "auto")


async def test_a_line_that_two_workers_ask_for_at_once_runs_once(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lines_of(one) as lines, connected(lines) as old, connected(lines) as new:
        asked, goes_on, grant_of = asyncio.Event(), asyncio.Event(), lines.keys.grant_of

        async def slowly(key_id: int) -> Grant:
            asked.set()
            await goes_on.wait()
            return await grant_of(key_id)

        monkeypatch.setattr(lines.keys, "grant_of", slowly)
        old.open()
        old.ask(1)
        await asked.wait()
        new.open()
        new.ask(1)
        again = await new.answer(1)
        goes_on.set()
        assert (again.status, (await old.answer(1)).status) == (503, 200)
        await one.gateway.ledger.settled(1)
        await until(lambda: not lines.live)


@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if one.in_batches], ids=lambda one: one.name
)
async def test_a_line_is_answered_as_its_operation_answers(one: Rig, operation: Operation) -> None:
    """Except for ids and times."""
    body = EXAMPLES[operation.name].body(MODEL.name)
    async with one.gateway.client("acme") as client:
        direct = (await client.post(operation.path, json=body)).json()
    (billed,) = await one.gateway.ledger.settled(1)
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.open(operation.name)
        worker.ask_for(body, 1)
        answer = await worker.answer(1)
        await one.gateway.ledger.settled(2)
    assert answer.status == 200
    assert _same(json.loads(answer.body)) == _same(direct)
    entry = next(e for e in one.gateway.ledger.entries.values() if e.id == line_id("batch_1", 1))
    assert entry.usage == answer.usage
    assert entry.usage.prompt_tokens == billed.usage.prompt_tokens
    assert entry.usage.completion_tokens == billed.usage.completion_tokens


@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if one.in_batches], ids=lambda one: one.name
)
async def test_a_line_reaches_no_adapter_of_another_tenant(one: Rig, operation: Operation) -> None:
    ref = one.adapter("globex", "support")
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.open(operation.name)
        for number, name in enumerate(("support", "globex/support", ref.name), 1):
            worker.ask_for(EXAMPLES[operation.name].body(name), number)
            answer = await worker.answer(number)
            assert (answer.status, answer.code) == (404, "model_not_found")
    assert not one.gateway.ledger.entries


def _same(body: dict[str, Any]) -> dict[str, Any]:
    """The answer without the fields that differ between two answers to one request."""
    changes = {"id", "created", "created_at", "completed_at", "usage"}
    kept = {name: value for name, value in body.items() if name not in changes}
    for item in kept.get("output", ()):
        del item["id"]
    assert kept
    return kept


async def test_a_line_that_is_asked_for_again_is_billed_once(one: Rig) -> None:
    engine = one.engine
    assert isinstance(engine, SyntheticEngine)
    async with lines_of(one) as lines:
        engine.behaviour = Behaviour(stall_after_tokens=2)
        async with connected(lines) as worker:
            worker.open()
            worker.ask(1)
            assert await worker.began(1) == {1}
        await one.gateway.ledger.settled(1)  # the worker's socket was lost, which ends the attempt
        engine.behaviour = Behaviour()
        async with connected(lines) as worker:
            worker.open()
            worker.ask(1, turn=2048)
            assert (await worker.answer(1)).status == 200
        entries = one.gateway.ledger.entries
        await until(lambda: [one.attempt for one in entries.values()] == [first_attempt(2048)])
    (entry,) = entries.values()
    assert entry.finish_reason == "stop" and not one.gateway.limits.open


@pytest.fixture
def stalled(one: Rig) -> Rig:
    """A rig whose engine generates nothing."""
    assert isinstance(one.engine, SyntheticEngine)
    one.engine.behaviour = STALLED
    return one


@asynccontextmanager
async def one_in_flight(stalled: Rig) -> AsyncIterator[tuple[Lines, Worker]]:
    """The engine has the first line."""
    async with lines_of(stalled) as lines, connected(lines) as worker:
        worker.open()
        worker.ask(1)
        await until(lambda: stalled.gateway.hub.in_flight)
        yield lines, worker


async def test_lines_wait_here_and_not_in_front_of_engines(stalled: Rig) -> None:
    async with lines_of(stalled) as lines, connected(lines) as worker:
        worker.open()
        for number in range(1, 61):
            worker.ask(number)
        there = RUNNING + AHEAD
        await until(lambda: len(lines.live) == 60 and stalled.gateway.hub.in_flight >= there)
        for _ in range(10):
            await asyncio.sleep(0)
        assert stalled.gateway.hub.in_flight == there
        worker.say(WithdrawBatch("batch_1"))
        given_back = [await worker.answer(number) for number in range(there + 1, 61)]
        assert {(answer.again_s, answer.sent) for answer in given_back} == {(0.0, False)}
        assert len(lines.live) == there
    await until(lambda: not lines.live)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messages": []}, "invalid_request"),
        ({"stream": True}, "invalid_request"),
        ({"model": "nobody's"}, "model_not_found"),
        ({"content": "x" * 20_000}, "payload_too_large"),
    ],
    ids=str,
)
async def test_a_line_that_cannot_be_answered_fails(
    one: Rig, body: dict[str, Any], code: str
) -> None:
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.open()
        worker.ask(1, **body)
        answer = await worker.answer(1)
    assert (answer.code, answer.again_s, answer.sent) == (code, None, False)
    assert json.loads(answer.body)["error"]["code"] == code


async def test_a_line_that_meets_a_limit_must_be_sent_again(one: Rig) -> None:
    one.gateway.limits.full = True
    one.gateway.limits.refusal = RateLimitExceeded("later", retry_after_s=7.0)
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.open()
        worker.ask(1)
        answer = await worker.answer(1)
        assert (answer.status, answer.again_s, answer.sent) == (429, 7.0, False)
        one.gateway.limits.refusal = RateLimitExceeded("never")
        worker.ask(1)
        assert (await worker.answer(1)).again_s is None


async def test_a_key_that_ends_ends_its_lines(stalled: Rig) -> None:
    async with one_in_flight(stalled) as (_, worker):
        stalled.gateway.keys.revoked.add("acme")
        stalled.gateway.keys.revoke(4, ApiKeyRevoked())
        assert (await worker.answer(1)).code == "api_key_revoked"
        worker.ask(2)
        assert (await worker.answer(2)).code == "invalid_api_key"


async def test_a_line_of_a_rotated_key_must_be_sent_again(stalled: Rig) -> None:
    async with one_in_flight(stalled) as (_, worker):
        stalled.gateway.keys.tenants[4] = "globex"  # as if the new key belonged to the same tenant
        stalled.gateway.keys.revoke(4, ApiKeyRevoked())
        answer = await worker.answer(1)
        assert answer.again_s is not None and answer.sent


@pytest.mark.parametrize(
    "changed",
    [{"key_id": 6}, {"batch": "batch_2"}, {"created_at": 1.0}, {"seal": "0" * 64}],
    ids=str,
)
async def test_a_line_without_a_valid_seal_is_not_run(one: Rig, changed: dict[str, Any]) -> None:
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.open(**changed)
        assert "Invalid seal" in await worker.closed()


async def test_a_line_belongs_to_a_batch(one: Rig) -> None:
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.ask(1)
        assert "not open" in await worker.closed()


async def test_a_message_of_a_later_release_is_ignored_and_logged(one: Rig) -> None:
    async with lines_of(one) as lines, connected(lines) as worker:
        with structlog.testing.capture_logs() as logs:
            worker.say_bytes(b"\x92\xa5hullo\x01")
            worker.open()
            worker.ask(1)
            assert (await worker.answer(1)).status == 200
        unknown = [log["frame"] for log in logs if log["event"] == "unknown_frame"]
    assert unknown == ["hullo"]


@pytest.mark.parametrize("message", [b"\xc1", b"", b"\x90", b"\x92\x01\x02", b"\x92\xa4open\x01"])
async def test_a_worker_that_sends_invalid_messages_is_disconnected(
    one: Rig, message: bytes
) -> None:
    async with lines_of(one) as lines, connected(lines) as worker:
        worker.say_bytes(message)
        assert await worker.closed()


async def test_sockets_without_the_worker_token_are_refused(one: Rig) -> None:
    async with lines_of(one) as lines, connected(lines, Worker("x" * 40)) as worker:
        assert "LORIKEET_WORKER_TOKEN" in await worker.closed()


async def test_a_line_whose_task_never_began_can_be_asked_for_again(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker hangs up in the same turn of the event loop in which the line would go to an
    engine."""
    async with lines_of(one) as lines:
        added = lines.add

        def add(line: WaitingLine, tenant: str) -> None:
            added(line, tenant)
            for task in line.link.tasks:
                task.cancel()
            monkeypatch.undo()

        monkeypatch.setattr(lines, "add", add)
        async with connected(lines) as worker:
            worker.open()
            worker.ask(1)
            await until(lambda: lines.add == added)
        async with connected(lines) as worker:
            worker.open()
            worker.ask(1)
            assert (await worker.answer(1)).status == 200
