"""Fair shares across several engines and gateways, over real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from tests.inference.rig import Gateway, agent_on, chat, connected, gateway
from tests.inference.samples import MODEL

PLACES = 4
"""Places of each engine: few, so that both tenants always have requests waiting."""
PACED = Behaviour(tokens_per_second=200)
"""Slow compared with what two tenants can request, fast compared with how often engines exchange
shares."""
WARM, ENOUGH = 160, 800
"""Answers of the heavy tenant: those of two seconds, in which the shares settle, and those of ten.
Engines exchange their figures once a second, so an engine's view lags by as much."""
TENANTS = {"acme": 4.0, "globex": 1.0}
"""Weights."""


@asynccontextmanager
async def asking(one: Gateway, tenant: str, clients: int) -> AsyncIterator[None]:
    """Keep `clients` clients of the tenant busy, each with one request at a time, until the block
    ends."""
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
    """Tokens in the ledgers by tenant, without prompt tokens that the prefix cache held."""
    tokens: Counter[int] = Counter()
    for one in gateways:
        for entry in one.ledger.entries.values():
            usage = entry.usage
            used = usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
            tokens[entry.account.tenant_id] += used
    return tokens


async def test_weights_hold_over_two_engines_and_two_gateways(tmp_path: Path) -> None:
    """The heavy tenant's gateway has both engines, the light tenant's only the first. If each
    engine counted its own shares alone, the heavy tenant would get nine times as much instead of
    four."""
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
