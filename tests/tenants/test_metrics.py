"""A gateway's /metrics page, as Prometheus reads it."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from asgiref.sync import sync_to_async
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gateway.planes.monitoring.metrics import MetricsPage
from inference.gateway.fleet.demand import Demand, FleetDemand
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.hub import Hub
from inference.gateway.measuring.busiest import Busiest
from inference.gateway.measuring.measures import EndedRequest, Measures
from inference.gateway.requests.held import Holding
from inference.gateway.routing.prefill import HANDED_OVER
from inference.interfaces.directory import ResolvedTarget
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.engine_info import EngineStats
from tenants.billing.ledger import Ledger
from tenants.database import Database
from tenants.directory.engines import KnownEngines
from tenants.limits.failover import Failover
from tenants.limits.limiter import StoreLimiter
from tenants.limits.memory import MemoryStore
from tenants.models import EngineJournal, Rollout
from tests.inference.played import benched
from tests.tenants.making import NoBudgets, make_base, make_rollout

TOKEN = "m" * 32
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
"""Approximately the header that Prometheus sends."""
ROW = re.compile(r"^\| `(lorikeet_\w+)` \| (\w+) \| (.*?) ?\|", re.MULTILINE)
"""A row of the table in docs/observe.md: name, type, labels."""
NAME = re.compile(r"`(lorikeet_\w+)[`{]")
"""The name of a metric in a document; `lorikeet_engine_*` is not one."""
ROOT = Path(__file__).resolve().parents[2]


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
    demand.set_others([{"base": Demand(engines=1, running=2, held=1)}], time.monotonic())
    app = MetricsPage(token, hub, ledger, limiter, database, demand, ROOT)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


@pytest.mark.parametrize(
    ("token", "header", "status"),
    [(TOKEN, None, 401), (TOKEN, "Bearer wrong", 401), ("", "Bearer ", 404), ("", None, 404)],
)
async def test_metrics_require_the_token(token: str, header: str | None, status: int) -> None:
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


async def test_held_and_moved_requests_are_exported(database: Database) -> None:
    ledger, limits = Ledger(), StoreLimiter(Failover(MemoryStore()), NoBudgets(), "usd")
    async with benched(holding=Holding(60.0)) as bench:
        first = await bench.join("first")
        stream = bench.submit("r1")
        await first.asked()
        second = await bench.join("second")
        first.hang_up()
        await second.asked()
        second.say(wire.Step([wire.Delta("r1", "Hi", 1, attempt=2)]))
        await stream.read()
        bench.submit("r2", target=ResolvedTarget("other", "other"))
        demand = FleetDemand(bench.hub.demand, 0.0)
        demand.set_others([], time.monotonic())
        app = MetricsPage(TOKEN, bench.hub, ledger, limits, database, demand, ROOT)
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as one:
            answer = await one.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert 'lorikeet_pool_held{base_model="other"} 1.0' in answer.text
    moved = 'lorikeet_moves_total{outcome="begun_anew",reason="lost"} 1.0'
    assert moved in answer.text
    assert "lorikeet_move_gap_seconds_count 1.0" in answer.text


def measured() -> Measures:
    """Measures with a value for everything."""
    measures = Measures(busiest=Busiest(1))
    usage = Usage(7, 3, 5, queue_s=0.3, load_s=0.2)
    traced = EndedRequest(usage, True, True, True, 0.7, 2.1, trace_id="a" * 32)
    measures.ended(measures.engine("base", "e1"), traced)
    measures.held("base", 0.5)
    measures.counted("base", "e1", "completed", "stop")
    measures.refusals["requests_per_minute", "key"] += 1
    measures.busiest.note("acme", "completed", 7, 5, 1.0)
    return measures


@pytest.fixture
async def full(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway with one engine that has measured something of each kind."""
    await sync_to_async(EngineJournal.objects.create)(journal="j1", engine_id="e1")
    await sync_to_async(roll_out)()
    ledger, limits = Ledger(), StoreLimiter(Failover(MemoryStore()), NoBudgets(), "usd")
    async with benched(measures=measured()) as bench:
        bench.hub.overflow.requests["base"] += 1
        bench.hub.prefill.prompts["base", HANDED_OVER] += 1
        await bench.join("e1", stats=EngineStats(running=2, active=["a"], resident=["a", "b"]))
        demand = FleetDemand(bench.hub.demand, 0.0)
        demand.set_others([], time.monotonic())
        app = MetricsPage(TOKEN, bench.hub, ledger, limits, database, demand, ROOT)
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(
            transport=transport, base_url="http://gateway", headers=AUTHORIZED
        ) as one:
            yield one


async def test_openmetrics_has_examples_where_prometheus_asks_for_it(
    full: httpx.AsyncClient,
) -> None:
    answer = await full.get("/metrics", headers=OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    families = {one.name: one for one in openmetrics.text_string_to_metric_families(answer.text)}
    samples = families["lorikeet_time_to_first_token_seconds"].samples
    (example,) = [one.exemplar for one in samples if one.exemplar]
    assert (example.labels, example.value) == ({"trace_id": "a" * 32}, 0.7)
    plain = await full.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "trace_id" not in plain.text


async def test_each_engine_tells_of_its_slots_and_adapters(full: httpx.AsyncClient) -> None:
    answer = await full.get("/metrics")
    for line in (
        'lorikeet_engine_running{base_model="base",engine="e1"} 2.0',
        'lorikeet_engine_adapter_slots{base_model="base",engine="e1"} 2.0',
        'lorikeet_engine_adapters_active{base_model="base",engine="e1"} 1.0',
        'lorikeet_engine_adapters_resident{base_model="base",engine="e1"} 2.0',
        'lorikeet_engine_journal_unbilled_requests{base_model="base",engine="e1"} 0.0',
        'lorikeet_refusals_total{kind="requests_per_minute",scope="key"} 1.0',
        'lorikeet_refusals_total{kind="tokens_per_day",scope="tenant"} 0.0',
        'lorikeet_tenant_tokens_total{kind="output",tenant="acme"} 5.0',
        'lorikeet_hold_seconds_count{base_model="base"} 1.0',
    ):
        assert f"{line}\n" in answer.text, line


async def test_no_tenant_is_named_unless_asked_for(database: Database) -> None:
    async with client(database) as one:
        answer = await one.get("/metrics", headers=AUTHORIZED)
    assert "tenant=" not in answer.text


async def exported(full: httpx.AsyncClient) -> dict[str, Metric]:
    """Every metric, by the name under which Prometheus stores it."""
    answer = await full.get("/metrics", headers=OPENMETRICS)
    return {
        f"{one.name}_total" if one.type == "counter" else one.name: one
        for one in openmetrics.text_string_to_metric_families(answer.text)
    }


async def test_the_document_lists_every_metric_with_its_labels(full: httpx.AsyncClient) -> None:
    found = {
        name: (one.type, {label for sample in one.samples for label in sample.labels} - {"le"})
        for name, one in (await exported(full)).items()
    }
    table = (ROOT / "docs" / "observe.md").read_text().split("## Metrics")[1].split("\n## ")[0]
    told = {
        name: (kind, {label for label in labels.split(", ") if label})
        for name, kind, labels in ROW.findall(table)
    }
    assert told == found


async def test_documents_name_only_metrics_that_exist(full: httpx.AsyncClient) -> None:
    texts = [file.read_text() for file in (ROOT / "docs").glob("*.md")]
    named = {name for text in texts for name in NAME.findall(text)}
    assert named - (await exported(full)).keys() == set()


async def test_rollouts_tell_how_far_they_are_and_how_they_ended(database: Database) -> None:
    await sync_to_async(roll_out)()
    async with client(database) as one:
        answer = await one.get("/metrics", headers=AUTHORIZED)
    for line in (
        'weight{base_model="base"} 25.0',
        'paused{base_model="base"} 1.0',
        'overdue_seconds{base_model="base"} 0.0',
        'untried_adapters{base_model="base"} 4.0',
        'tenants{base_model="base",place="new"} 2.0',
        'tenants{base_model="base",place="behind"} 1.0',
        'tenants{base_model="base",place="present"} 7.0',
        'error_percent{base_model="base",revision="new"} 1.5',
        'error_percent{base_model="base",revision="present"} 0.5',
        'ttft_p95_seconds{base_model="base",revision="present"} 0.32',
    ):
        assert f"lorikeet_rollout_{line}\n" in answer.text, line
    assert 'ttft_p95_seconds{base_model="base",revision="new"}' not in answer.text, "too few"
    for outcome, count in {"finished": 0, "aborted": 0, "rolled_back": 1}.items():
        line = f'lorikeet_rollouts_total{{base_model="base",outcome="{outcome}"}} {count}.0\n'
        assert line in answer.text


def roll_out() -> None:
    """Start a rollout and pause it at 25 %, of a revision that was rolled back once."""
    first = make_rollout(make_base())
    first.roll_back("too slow")
    rollout = Rollout.objects.start(first.revision)
    rollout.set_weight(25)
    rollout.pause()
    sides = {
        "old": {"error_percent": 0.5, "ttft_p95_s": 0.32},
        "new": {"error_percent": 1.5, "ttft_p95_s": None},
    }
    report = {"tenants": 10, "moved": 2, "behind_count": 1, "untried": 4, **sides}
    Rollout.objects.filter(pk=rollout.pk).update(report=report)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
async def test_prometheus_has_nothing_to_say_against_the_page(full: httpx.AsyncClient) -> None:
    answer = await full.get("/metrics")
    check = partial(subprocess.run, input=answer.text, capture_output=True, text=True)
    done = await asyncio.to_thread(check, ["promtool", "check", "metrics"])
    assert (done.returncode, done.stderr) == (0, "")
