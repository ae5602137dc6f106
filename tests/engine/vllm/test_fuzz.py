"""A short run of `make fuzz`. A new seed every day would find more, but be less repeatable."""

from __future__ import annotations

import pytest

from inference.agent.engines.engine import Engine
from tests.engine.factory import AdapterFactory
from tests.labs.fuzz.bodies import Fuzz, made
from tests.labs.fuzz.kinds import KINDS
from tests.labs.fuzz.run import Run

SEED, REQUESTS = 20, 150


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_no_request_ends_the_engine_or_changes_a_neighbours_answer(
    vllm: Engine, factory: AdapterFactory
) -> None:
    adapters = [factory.make(seed=90 + i) for i in range(2)]
    for adapter in adapters:
        await vllm.load(adapter)
    try:
        report = await Run(vllm, adapters, SEED).run(REQUESTS)
    finally:
        for adapter in adapters:
            await vllm.unload(adapter)
    assert vllm.alive
    assert report.findings == []
    assert report.answers.total() == REQUESTS
    assert report.compared > 3
    assert {kind for kind, _ in report.answers} == KINDS.keys() & {*vllm.info.operations}
    ended = {how for _, how in report.answers}
    assert {"stop", "length", "left", "invalid_request"} <= ended, "of every kind"


def test_a_seed_makes_the_same_requests_again() -> None:
    def requests(seed: int) -> list[Fuzz]:
        return [made(seed, number, 2, [*KINDS]) for number in range(3000)]

    assert requests(SEED) == requests(SEED)
    assert requests(SEED) != requests(SEED + 1)
    for kind, declared in KINDS.items():
        drawn = {name for one in requests(SEED) if one.kind == kind for name in one.body}
        assert declared.fields.keys() <= drawn
