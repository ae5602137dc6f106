"""A busy agent, and another one that takes its overflow, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.gateway.requests.held import Holding
from inference.gateway.routing.overflow import Overflow
from tests.inference.rig import STALLED, Rig, agent_on, chat, gateway, until
from tests.inference.samples import MODEL

WAIT_S = 0.3
OUTSIDE = msgspec.structs.replace(MODEL, overflow=True)
CONSENTS, REFUSES = "acme", "globex"


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig]]:
    """An own engine that runs one request at a time, and an overflow engine."""
    overflow = Overflow(WAIT_S)
    overflow.note_left(100_000, time.monotonic())
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(gateway(holding=Holding(60.0), overflow=overflow))
        one.keys.overflowing = {CONSENTS}
        made = []
        for name, model in (("own", MODEL), ("outside", OUTSIDE)):
            (tmp_path / name).mkdir()
            engine = SyntheticEngine(model)
            stack.push_async_callback(engine.close)
            running = 1 if name == "own" else 8
            agent = agent_on(engine, tmp_path / name, [one], id=name, max_running=running)
            made.append(await stack.enter_async_context(agent))
        await until(lambda: len(one.hub.snapshot()) == 2)
        yield made[0], made[1]


async def test_only_who_consents_leaves_and_only_when_the_own_engine_is_busy(
    engines: tuple[Rig, Rig],
) -> None:
    own, outside = engines
    one = own.gateway
    own.adapter(CONSENTS, "support")
    async with one.client(CONSENTS) as consents, one.client(REFUSES) as refuses:
        chats = "/v1/chat/completions"

        def asked(client: Any, model: str = MODEL.name) -> asyncio.Task[Any]:
            return asyncio.create_task(client.post(chats, json=chat(model)))

        assert (await asked(consents)).status_code == 200
        (free,) = await one.ledger.settled(1)
        assert not free.account.overflow, "the own engine was free"
        own.engine.behaviour = STALLED  # type: ignore[attr-defined]
        blocks = asked(refuses)
        await until(lambda: own.engine.stats().running == 1)
        waiting = [asked(refuses), asked(consents, "support")]
        await until(lambda: own.agent.reports.stats().queued == 2)
        answer = await asked(consents)
        assert answer.status_code == 200
        assert one.hub.overflow.requests == {MODEL.name: 1}
        assert not any(task.done() for task in (blocks, *waiting))
        own.engine.behaviour = Behaviour()  # type: ignore[attr-defined]
        assert {(await task).status_code for task in (blocks, *waiting)} == {200}
        entries = await one.ledger.settled(5)
    overflowed = [entry for entry in entries if entry.account.overflow]
    assert [f"req_{entry.id}" for entry in overflowed] == [answer.headers["x-request-id"]]
    assert overflowed[0].attempt == 2 and overflowed[0].usage.completion_tokens > 0
    assert outside.engine.stats().completion_tokens == overflowed[0].usage.completion_tokens
