"""How fast one process writes the ledger, and how fast a month of it is read."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.db.models import QuerySet, Sum

from inference.link.accounts import Account, LedgerEntry, Usage
from tenants.billing.ledger import Ledger
from tenants.models import BaseModel, Price, Tenant, UsageRollup, UsageSum
from tests.labs.bench.machinery.processes import Failed, postgres_cpu_s
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale

ROWS_PER_S = 5_000
QUERY_MS = 50
TENANTS, KEYS, ADAPTERS = 1_000, 2, 4
"""Keys and adapters are per tenant; a request uses an adapter or the base model."""
ENGINES, WINDOW, FRAME = 4, 2_000, 500
"""Engines; entries that each agent may have unacknowledged; entries in one frame."""
TICK_S = 0.001
QUERIES: dict[str, Sequence[str]] = {
    "by day": ["day"],
    "by day and adapter": ["day", "adapter"],
    "by key and model": ["key", "model"],
}
MONTH = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 2, 1, tzinfo=UTC)
"""A month that no other benchmark writes into."""


async def run(scale: Scale) -> Report:
    """Write through `Ledger` into an empty month, then query a month with `scale.events` in it.

    Raises:
        Failed: the ledger does not hold exactly what was written.
    """
    tenants = await sync_to_async(_make_tenants)()
    written = [await _write(scale.ledger_rows, tenants) for _ in range(scale.rounds)]
    async with _a_month(scale.events, tenants) as month:
        queried = {
            (who, what): await sync_to_async(_query_ms)(tenant, by, scale.rounds)
            for who, tenant in month.tenants.items()
            for what, by in QUERIES.items()
        }
    return Report(
        "The ledger",
        [
            Row(
                "written by one process", _of(written, "rows_per_s"), "rows/s", at_least=ROWS_PER_S
            ),
            Row("CPU of that process", _of(written, "cpu_ms"), "ms per 1,000"),
            Row("CPU of PostgreSQL", _of(written, "postgres_ms"), "ms per 1,000"),
            Row("longest hold of the event loop", _of(written, "hold_ms"), "ms"),
            *(
                Row(f"a month {what}, {who}", figure, "ms", at_most=QUERY_MS)
                for (who, what), figure in queried.items()
            ),
        ],
        f"Queried in {scale.events:,} events of {TENANTS:,} tenants, summed in "
        f"{month.rollups:,} rows: {month.shown}.",
    )


def _of(rounds: Sequence[Written], name: str) -> Figure:
    return Figure.of([getattr(one, name) for one in rounds])


# --- Writing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """Results of one round. CPU times are in milliseconds per 1,000 rows."""

    rows_per_s: float
    cpu_ms: float
    postgres_ms: float
    hold_ms: float


class Agent:
    """An engine that always has more ledger entries, and so keeps its window full."""

    def __init__(self, recorder: Ledger, name: str, entries: Iterator[LedgerEntry]) -> None:
        self._recorder, self._name, self._entries = recorder, name, entries
        self._unacknowledged = 0
        self.done = asyncio.Event()

    def send(self) -> None:
        """Send a frame if the window has room for a whole one, and schedule the next."""
        frame: list[LedgerEntry] = []
        if self._unacknowledged <= WINDOW - FRAME:
            frame = list(itertools.islice(self._entries, FRAME))
        if frame:
            self._unacknowledged += len(frame)
            self._recorder.record(self._name, self._name, frame, self._acknowledged)
            asyncio.get_running_loop().call_soon(self.send)
        elif not self._unacknowledged:
            self.done.set()

    def _acknowledged(self, attempts: Sequence[tuple[str, int]]) -> None:
        self._unacknowledged -= len(attempts)
        self.send()


async def _write(count: int, tenants: Sequence[Tenant]) -> Written:
    entries = _entries(count, tenants)
    before = await sync_to_async(_billed)()
    began, cpu_s, postgres_s = time.perf_counter(), time.process_time(), postgres_cpu_s()
    async with Ledger() as recorder:
        agents = [
            Agent(recorder, f"bench-{n}", itertools.islice(entries, n, None, ENGINES))
            for n in range(ENGINES)
        ]
        hold = asyncio.create_task(_longest_hold_s(agents))
        for agent in agents:
            agent.send()
        hold_s = await hold
        took_s = time.perf_counter() - began
        used_s, postgres_used_s = time.process_time() - cpu_s, postgres_cpu_s() - postgres_s
    if (after := await sync_to_async(_billed)()) != before + count:
        raise Failed(f"{count} entries were written, but the sums grew by {after - before}")
    per_1000_ms = 1e6 / count
    return Written(
        count / took_s, used_s * per_1000_ms, postgres_used_s * per_1000_ms, hold_s * 1000
    )


async def _longest_hold_s(agents: Sequence[Agent]) -> float:
    """The most CPU seconds for which the event loop was held, until all agents are done."""
    longest = 0.0
    while not all(agent.done.is_set() for agent in agents):
        began = time.thread_time()
        await asyncio.sleep(TICK_S)
        longest = max(longest, time.thread_time() - began)
    return longest


def _entries(count: int, tenants: Sequence[Tenant]) -> list[LedgerEntry]:
    now, random_ = time.time(), random.Random(1)
    made = []
    for _ in range(count):
        tenant, adapter = random_.choice(tenants), random_.randrange(ADAPTERS + 1)
        model = f"adapter-{adapter}" if adapter else "bench-base"
        key_id, price = random_.randrange(KEYS), (150_000, 75_000, 600_000)
        account = Account(tenant.pk, key_id, now, "bench-base", adapter or None, None, price=price)
        usage = Usage(200, 80, random_.randrange(500), 0, 0.01, 0.0, 0.05, 3.5)
        made.append(LedgerEntry(uuid.uuid4().hex, account, model, usage, "stop"))
    return made


def _billed() -> int:
    rollups = UsageRollup.objects.filter(base_model="bench-base")
    requests: int = rollups.aggregate(sum=Sum("requests", default=0))["sum"]
    return requests


def _make_tenants() -> list[Tenant]:
    base, _ = BaseModel.objects.get_or_create(
        name="bench-base", defaults={"max_model_len": 4096, "max_lora_rank": 16, "engine": "vllm"}
    )
    Price.objects.get_or_create(
        base_model=base,
        starts_at=datetime(2020, 1, 1, tzinfo=UTC),
        defaults={"prompt": 150_000, "cached_prompt": 75_000, "output": 600_000},
    )
    slugs = [f"bench-{n}" for n in range(TENANTS)]
    Tenant.objects.bulk_create(
        [Tenant(slug=slug, name=slug) for slug in slugs], ignore_conflicts=True
    )
    return list(Tenant.objects.filter(slug__in=slugs).order_by("pk"))


# --- Reading -------------------------------------------------------------------------------------

# Few tenants have most of the requests: of 1,000 the busiest has a tenth, the median one in 2,000.
# Hash functions instead of random() give the same data every time.
_EVENTS = """
INSERT INTO tenants_usageevent (
    id, started_at, tenant_id, key_id, version_id, adapter, model, base_model, engine_id, journal,
    prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, prompt_price,
    cached_prompt_price, output_price, cost, finish_reason, queue_s, load_s, ttft_s, total_s)
SELECT lpad(to_hex(n), 32, '0'),
       %(start)s::timestamptz + n * (%(end)s::timestamptz - %(start)s) / %(events)s,
       (%(tenants)s::bigint[])[1 + floor(%(count)s * share ^ 3)::int], n %% %(keys)s, NULL, adapter,
       CASE adapter WHEN '' THEN 'bench-base' ELSE adapter END, 'bench-base', 'bench-0', 'bench-0',
       200, 80, 100 + n %% 400, 0, 150000, 75000, 600000,
       120 * 150000 + 80 * 75000 + (100 + n %% 400) * 600000, 'stop', 0.01, 0, 0.05, 3.5
FROM (
    SELECT n, abs(hashint8(n)::bigint) / 2147483649.0::float8 AS share,
           (ARRAY['', 'adapter-1', 'adapter-2', 'adapter-3', 'adapter-4'])
               [1 + abs(hashint8(-n)::bigint) %% 5] AS adapter
    FROM generate_series(0, %(events)s - 1) AS n
) AS request
"""
_ROLLUPS = """
INSERT INTO tenants_usagerollup (hour, tenant_id, key_id, adapter, model, base_model, requests,
    prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost)
SELECT date_trunc('hour', started_at, 'UTC'), tenant_id, key_id, adapter, model, base_model,
       count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
       sum(reasoning_tokens), sum(cost)
FROM tenants_usageevent WHERE started_at >= %(start)s AND started_at < %(end)s
GROUP BY 1, 2, 3, 4, 5, 6
"""


@dataclass(frozen=True, slots=True)
class Month:
    """A ledger with many events; `tenants` and their event counts `sizes` are keyed by a
    description of the tenant."""

    rollups: int
    tenants: dict[str, Tenant]
    sizes: dict[str, int]

    @property
    def shown(self) -> str:
        return ", ".join(f"{size:,} of the {who}" for who, size in self.sizes.items())


@asynccontextmanager
async def _a_month(events: int, tenants: Sequence[Tenant]) -> AsyncIterator[Month]:
    yield await sync_to_async(_fill)(events, tenants)
    await sync_to_async(_empty)()


def _fill(events: int, tenants: Sequence[Tenant]) -> Month:
    start, end = MONTH
    values: dict[str, Any] = {
        "start": start, "end": end, "events": events, "tenants": [one.pk for one in tenants],
        "count": len(tenants), "keys": KEYS,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenants_usage_partition(%s)", [start])
        cursor.execute(_EVENTS, values)
        cursor.execute(_ROLLUPS, values)
        rollups = cursor.rowcount
        cursor.execute("VACUUM ANALYZE tenants_usageevent, tenants_usagerollup, tenants_usagemonth")
    chosen = {
        "busiest tenant": tenants[0],
        "middle tenant": tenants[len(tenants) // 2],
    }
    sizes = {who: _asked(tenant, []).get()["requests"] for who, tenant in chosen.items()}
    return Month(rollups, chosen, sizes)


def _empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE tenants_usageevent_{MONTH[0]:%Y_%m}")
        cursor.execute("DELETE FROM tenants_usagerollup WHERE hour >= %s AND hour < %s", MONTH)


def _asked(tenant: Tenant, by: Sequence[str]) -> QuerySet[UsageSum, dict[str, Any]]:
    """The query of `GET /api/v1/usage`."""
    return UsageSum.objects.filter(tenant=tenant).sums(by, *MONTH)


def _query_ms(tenant: Tenant, by: Sequence[str], rounds: int) -> Figure:
    list(_asked(tenant, by))  # reads pages from disk before anything is timed
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        list(_asked(tenant, by))
        took.append(time.perf_counter() - began)
    return Figure.of([1000 * seconds for seconds in took])
