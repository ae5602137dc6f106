"""Shares over several engines and gateways, through real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inference.agent.engines.synthetic import Behaviour, SyntheticEngine
from tests.inference.rig import Gateway, agent_on, chat, connected, gateway
from tests.inference.samples import MODEL

PLACES = 4
"""On each engine: a few, so that both tenants always have requests waiting."""
PACED = Behaviour(tokens_per_second=200)
"""Slow against what two tenants can ask for, fast against how often engines tell of shares."""
WARM, ENOUGH = 160, 800
"""Answers of the heavy tenant: of two seconds, in which shares come level, and of ten. Engines tell
each other once a second, so whoever was told of least is behind by as much."""
TENANTS = {"acme": 4.0, "globex": 1.0}
"""Weights."""


@asynccontextmanager
async def asking(one: Gateway, tenant: str, clients: int) -> AsyncIterator[None]:
    """So many clients of the tenant, each with a request under way at any time until the end."""
    enough = asyncio.Event()

    async def ask() -> None:
        async with one.client(tenant) as client:
            while not enough.is_set():
                body = chat(max_tokens=24, ignore_eos=True)
                (await client.post("/v1/chat/completions", json=body)).raise_for_status()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(ask())
        yield
        enough.set()


def served(gateways: Iterable[Gateway]) -> Counter[int]:
    """Tokens in the ledger, by tenant, that the prefix cache did not hold."""
    tokens: Counter[int] = Counter()
    for one in gateways:
        for entry in one.ledger.entries.values():
            usage = entry.usage
            used = usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
            tokens[entry.account.tenant_id] += used
    return tokens


async def test_weights_hold_over_two_engines_and_two_gateways(tmp_path: Path) -> None:
    """The heavy tenant's gateway has both engines, the light one's has the first alone. Were
    shares of each engine's own, the heavy one would get nine times as much, not four."""
    async with gateway() as both, gateway() as near:
        for one in (both, near):
            one.keys.weights = TENANTS
        near.hub.set_gateways([near.url, both.url])
        engines = [SyntheticEngine(MODEL, PACED) for _ in range(2)]
        roots = [tmp_path / "near", tmp_path / "far"]
        for root in roots:
            root.mkdir()
        async with (
            agent_on(engines[0], roots[0], [near, both], id="near", max_running=PLACES),
            agent_on(engines[1], roots[1], [both], id="far", max_running=PLACES),
        ):
            await connected(both, engines=2)
            async with asking(both, "acme", 40), asking(near, "globex", 12):
                for count in range(20, WARM + 1, 20):
                    await both.ledger.settled(count)
                before = served((both, near))
                for count in range(WARM, ENOUGH, 80):
                    await both.ledger.settled(count)
                got = served((both, near)) - before
            assert [engine["id"] for engine in near.hub.snapshot()] == ["near"]
        for engine in engines:
            await engine.close()
    assert got[len("acme")] / got[len("globex")] == pytest.approx(4, rel=0.1)
