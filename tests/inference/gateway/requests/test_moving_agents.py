"""Streams that move between agents with synthetic engines, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import MoveReason, MoveResult
from tests.inference.gateway.long_answers import ANSWERS, STALLS, STEADY, Answer
from tests.inference.rig import Gateway, Rig, agent_on, gateway, until
from tests.inference.samples import MODEL


@dataclass
class Pair:
    """Two agents at one gateway."""

    gateway: Gateway
    rigs: list[Rig]

    def busy(self) -> Rig:
        (rig,) = (one for one in self.rigs if one.engine.stats().running)
        return rig

    async def ask(self, path: str, body: dict[str, Any]) -> Answer:
        answer = Answer()
        async with self.gateway.client() as client:
            async with client.stream("POST", path, json=body) as response:
                assert response.status_code == 200, await response.aread()
                await answer.read(response)
        return answer


@asynccontextmanager
async def pair(root: Path, behaviour: Behaviour = STALLS) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(gateway(holding=Holding(60.0)))
        made = Pair(one, [])
        for name in ("a", "b"):
            (root / name).mkdir()
            engine = SyntheticEngine(MODEL, behaviour)
            stack.push_async_callback(engine.close)
            rig = await stack.enter_async_context(agent_on(engine, root / name, [one], id=name))
            made.rigs.append(rig)
        await until(lambda: len(one.hub.snapshot()) == 2)
        yield made


async def killed(rig: Rig) -> None:
    rig.running.cancel()


async def drained(rig: Rig) -> None:
    await rig.agent.drain(0.0)


GOES: dict[MoveReason, Callable[[Rig], Awaitable[None]]] = {
    MoveReason.LOST: killed,
    MoveReason.DRAINED: drained,
}


@pytest.mark.parametrize("why", GOES)
@pytest.mark.parametrize("what", ANSWERS)
async def test_a_moved_answer_equals_an_undisturbed_one(
    tmp_path: Path, what: str, why: MoveReason
) -> None:
    path, body = ANSWERS[what]
    async with pair(tmp_path) as made:
        asking = asyncio.create_task(made.ask(path, body))
        await until(lambda: any(one.engine.stats().completion_tokens for one in made.rigs))
        going = made.busy()
        await until(lambda: going.engine.stats().completion_tokens >= 7)
        for rig in made.rigs:
            if rig is not going:
                rig.engine.behaviour = STEADY  # type: ignore[attr-defined]
        await GOES[why](going)
        answer = await asking
        assert made.gateway.hub.moves == {(why, MoveResult.RESUMED): 1}
        made.rigs = [rig for rig in made.rigs if rig is not going]
        twin = await made.ask(path, body)
    assert answer.error == "" and answer.said == twin.said
    assert all(answer.texts.values()) and answer.usage["completion_tokens"]
