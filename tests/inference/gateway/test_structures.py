"""Answers of requests with a schema at a gateway: what is noted of them, on each edge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inference.gateway.measuring.outcomes import OutcomeSums, TakenOutcomes
from inference.interfaces.directory import ResolvedTarget, TrafficSplit
from inference.operations.structure import StructureOutcome
from inference.splitting import StickyBy
from tests.inference.rig import Rig, chat, rig, until
from tests.inference.samples import MODEL

OBJECT: dict[str, Any] = {"response_format": {"type": "json_object"}}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as one:
        yield one


async def taken(stack: Rig, **body: Any) -> TakenOutcomes:
    """Send a request; what is noted of it."""
    async with stack.gateway.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat(**body))
    assert answer.status_code == 200, answer.text
    await until(lambda: len(stack.gateway.hub.outcomes._tallies))
    return stack.gateway.hub.outcomes.take()


async def sums(stack: Rig, **body: Any) -> OutcomeSums:
    (one,) = (await taken(stack, **body)).tallies.values()
    return one


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_counted(stack: Rig, stream: bool) -> None:
    found = await sums(stack, stream=stream, **OBJECT)
    assert (found.requests, found.conformed, found.malformed, found.unchecked) == (1, 0, 1, 0)
    cut = await sums(stack, stream=stream, max_tokens=1, **OBJECT)
    assert (cut.malformed, cut.unchecked) == (0, 1)
    plain = await sums(stack, stream=stream)
    assert (plain.requests, plain.conformed, plain.malformed, plain.unchecked) == (1, 0, 0, 0)
    counts = stack.gateway.hub.measures.structures
    assert counts[MODEL.name, StructureOutcome.MALFORMED] == 1
    assert counts[MODEL.name, StructureOutcome.UNCHECKED] == 1
    assert stack.gateway.hub.structures.room.total == 0


async def test_a_split_learns_of_it(stack: Rig) -> None:
    stack.adapter("acme", "support", 1)
    candidate = ResolvedTarget("support", MODEL.name, stack.adapter("acme", "second", 2), 2)
    split = TrafficSplit(7, 50, StickyBy.REQUEST, "", candidate)
    stack.gateway.keys.splits["acme", "support"] = split
    for fields, conforms in ((OBJECT, False), ({}, None)):
        (one,) = (await taken(stack, model="support", **fields)).observations
        assert one.conforms is conforms
