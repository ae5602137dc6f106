"""What Prometheus reads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx
import pytest
from asgiref.sync import sync_to_async
from prometheus_client.parser import text_string_to_metric_families

from gateway.planes.metrics import Metrics
from inference.gateway.fleet.demand import Demand, FleetDemand
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.fleet.held import Holding
from inference.gateway.fleet.hub import Hub
from inference.grants import Target
from inference.link import wire
from tenants.billing.ledger import Ledger
from tenants.database import Database
from tenants.directory.engines import KnownEngines
from tenants.limits.failover import Failover
from tenants.limits.limiter import StoreLimiter
from tenants.limits.memory import MemoryStore
from tenants.models import EngineJournal
from tests.inference.played import benched
from tests.inference.samples import MOVABLE
from tests.tenants.making import NoBudgets

TOKEN = "m" * 32


@pytest.fixture
async def database(async_db: None) -> AsyncIterator[Database]:
    database = Database("metrics")
    await database.open()
    yield database
    await database.close()


def client(database: Database, token: str = TOKEN) -> httpx.AsyncClient:
    ledger = Ledger()
    limiter = StoreLimiter(Failover(MemoryStore()), NoBudgets(), "usd")
    engines, dispatches = KnownEngines(), Dispatches("d" * 40)
    hub = Hub("http://gateway", ledger, limiter, engines=engines, dispatches=dispatches)
    demand = FleetDemand(lambda: {"base": Demand(held=3)}, 0.0)
    demand.heard([{"base": Demand(engines=1, running=2, held=1)}], time.monotonic())
    app = Metrics(token, hub, ledger, limiter, database, demand)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


@pytest.mark.parametrize(
    ("token", "header", "status"),
    [(TOKEN, None, 401), (TOKEN, "Bearer wrong", 401), ("", "Bearer ", 404), ("", None, 404)],
)
async def test_only_who_knows_the_token_reads_them(
    token: str, header: str | None, status: int
) -> None:
    async with client(Database("closed"), token) as one:
        answer = await one.get("/metrics", headers={"Authorization": header} if header else {})
    assert answer.status_code == status
    assert "lorikeet" not in answer.text


async def test_drift_is_exported_for_each_journal(database: Database) -> None:
    await sync_to_async(EngineJournal.objects.create)(
        journal="j1",
        engine_id="engine-1",
        counted_requests=3,
        counted_prompt_tokens=10,
        counted_completion_tokens=5,
        ledger_requests=2,
        ledger_prompt_tokens=7,
        ledger_completion_tokens=5,
        unjournaled_tokens=1,
    )
    async with client(database) as one:
        answer = await one.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.headers["content-type"].startswith("text/plain")
    found = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    labels = {"engine": "engine-1", "journal": "j1"}
    assert found["lorikeet_drift_requests"] == (labels, 1)
    assert found["lorikeet_drift_tokens"] == (labels, 3)
    assert found["lorikeet_unjournaled_tokens"] == (labels, 1)
    assert found["lorikeet_limits_degraded"] == ({}, 0)
    assert found["lorikeet_streams"] == ({}, 0)
    assert found["lorikeet_move_gap_seconds_count"] == ({}, 0)
    assert found["lorikeet_pool_held"] == ({"base_model": "base"}, 4)
    assert found["lorikeet_pool_demand"] == ({"base_model": "base"}, 6)
    assert "lorikeet_pool_expected_wait_seconds" not in found, "nothing has ended yet"


async def test_what_waits_and_what_moved_is_exported(database: Database) -> None:
    ledger, limits = Ledger(), StoreLimiter(Failover(MemoryStore()), NoBudgets(), "usd")
    async with benched(holding=Holding(60.0)) as bench:
        first = await bench.join("first", model=MOVABLE)
        stream = bench.submit("r1")
        await first.asked()
        second = await bench.join("second", model=MOVABLE)
        first.hang_up()
        await second.asked()
        second.say(wire.Step([wire.Delta("r1", "Hi", 1, attempt=2)]))
        await stream.read()
        bench.submit("r2", target=Target("other", "other"))
        demand = FleetDemand(bench.hub.demand, 0.0)
        demand.heard([], time.monotonic())
        app = Metrics(TOKEN, bench.hub, ledger, limits, database, demand)
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as one:
            answer = await one.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert 'lorikeet_pool_held{base_model="other"} 1.0' in answer.text
    moved = 'lorikeet_moves_total{outcome="begun_anew",reason="lost"} 1.0'
    assert moved in answer.text
    assert "lorikeet_move_gap_seconds_count 1.0" in answer.text
