"""Budgets start from the ledger's hourly sums, by tenant, key or adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from pytest_django import Settings

from inference.errors import Unavailable
from inference.link.accounts import Usage
from tenants.database import Database
from tenants.directory.reader import Reader
from tenants.limits.limiter import configured
from tenants.limits.spent import LedgerSpent
from tenants.models import ApiKey, LimitSet, Tenant, UsageMonth
from tenants.utc import month_end, month_start
from tests.limits.asking import TIMEOUT_S, FakeSpent, grant, limits, target, wanted
from tests.limits.redis_server import RedisServer
from tests.tenants.making import make_adapter, make_key, make_tenant
from tests.tenants.spending import NOON, PRICE, spend

USAGE = Usage(prompt_tokens=100, cached_tokens=40, completion_tokens=7)
MICRO = -(-PRICE.cost(USAGE) // 10**6)
DAY = timedelta(days=1)
MIDNIGHT = NOON.replace(hour=0)


@pytest.fixture
async def pool(transactional_db: None) -> AsyncIterator[Database]:
    pool = Database("spent")
    await pool.open()
    yield pool
    await pool.close()
    await sync_to_async(connections.close_all)()


@sync_to_async
def a_day_of_two_tenants() -> tuple[Tenant, ApiKey, int]:
    """A key with three requests on one day, two of them with an adapter. Not to be counted: another
    key's, another tenant's with the same adapter name, those of the days around."""
    tenant, other = make_tenant("acme"), make_tenant("globex")
    adapter = make_adapter(tenant, "support")
    make_adapter(other, "support")
    (key, _), (second, _), (foreign, _) = make_key(tenant), make_key(tenant), make_key(other)
    for hours in (0, 12, 23):
        spend(key, MIDNIGHT + timedelta(hours=hours), USAGE, adapter="support" if hours else "")
    spend(second, NOON, USAGE)
    spend(foreign, NOON, USAGE, adapter="support")
    spend(key, MIDNIGHT - timedelta(hours=1), USAGE, adapter="support")
    spend(key, MIDNIGHT + DAY, USAGE, adapter="support")
    return tenant, key, adapter.pk


async def test_each_scope_has_spent_its_own(pool: Database) -> None:
    tenant, key, adapter_id = await a_day_of_two_tenants()
    found = {
        scope_id[0]: await LedgerSpent(pool).spent(scope_id, MIDNIGHT, MIDNIGHT + DAY)
        for scope_id in (f"t{tenant.pk}", f"k{key.pk}", f"a{adapter_id}")
    }
    tokens = {kind: tokens for kind, (tokens, _) in found.items()}
    assert tokens == {"t": 4 * 107, "k": 3 * 107, "a": 2 * 107}
    costs = {kind: cost for kind, (_, cost) in found.items()}
    exact = {
        kind: -(-n * PRICE.cost(USAGE) // 10**6) for kind, n in {"t": 4, "k": 3, "a": 2}.items()
    }
    assert costs == exact
    assert costs["k"] <= 3 * MICRO


@sync_to_async
def a_key_that_was_rotated_twice() -> tuple[ApiKey, ApiKey]:
    """The first and the last of three keys, each with one request."""
    first, _ = make_key(make_tenant("acme"))
    LimitSet.objects.create(tenant=first.tenant, key=first, author="operator", tokens_per_day=500)
    second, _ = first.rotate(DAY, None)
    last, _ = second.rotate(DAY, None)
    for key in (first, last):
        spend(key, NOON, USAGE)
    return first, last


async def test_a_rotated_key_has_spent_what_it_had_before(pool: Database) -> None:
    reader = Reader()
    await reader.open()
    found = [await reader.key(key.prefix) for key in await a_key_that_was_rotated_twice()]
    await reader.close()
    first, last = [row.limits()[0] for row in found if row is not None]
    assert (first.scope_id, first.values) == (last.scope_id, last.values)
    tokens, _ = await LedgerSpent(pool).spent(last.scope_id, MIDNIGHT, MIDNIGHT + DAY)
    assert tokens == 2 * 107


async def test_a_whole_month_is_read_from_its_sum(pool: Database) -> None:
    """The sum equals that of its hours, for each kind of scope."""
    tenant, key, adapter_id = await a_day_of_two_tenants()
    start, end = month_start(MIDNIGHT), month_end(MIDNIGHT)
    for scope_id in (f"t{tenant.pk}", f"k{key.pk}", f"a{adapter_id}"):
        month = await LedgerSpent(pool).spent(scope_id, start, end)
        hours = await LedgerSpent(pool).spent(scope_id, start, end + timedelta(hours=1))
        assert month == hours != (0, 0)
    await rewrite_month()
    assert await LedgerSpent(pool).spent(f"t{tenant.pk}", start, end) == (1, 1)


@sync_to_async
def rewrite_month() -> None:
    UsageMonth.objects.update(prompt_tokens=0, completion_tokens=0, cost=0)
    one = UsageMonth.objects.filter(tenant__slug="acme", month=month_start(MIDNIGHT)).first()
    assert one is not None
    UsageMonth.objects.filter(pk=one.pk).update(prompt_tokens=1, cost=10**6)


@pytest.mark.parametrize("scope_id", ["t999999", "k999999", "a999999"])
async def test_a_deleted_scope_has_spent_nothing(pool: Database, scope_id: str) -> None:
    await a_day_of_two_tenants()
    assert await LedgerSpent(pool).spent(scope_id, MIDNIGHT, MIDNIGHT + DAY) == (0, 0)


async def test_a_database_that_is_away_says_so(pool: Database) -> None:
    await pool.close()
    with pytest.raises(Unavailable):
        await LedgerSpent(pool).spent("t1", MIDNIGHT, MIDNIGHT + DAY)


@pytest.mark.parametrize("with_redis", [False, True])
async def test_the_settings_choose_the_store(
    settings: Settings, redis_server: RedisServer, with_redis: bool
) -> None:
    settings.REDIS_URL = redis_server.url if with_redis else ""
    patient = partial(configured, FakeSpent(), timeout_s=TIMEOUT_S)
    async with patient() as one, patient() as two:
        caller = grant(limits(concurrent_streams=1))
        await one.reserve("r1", caller, target(), wanted())
        rooms = await two.peek((limits(requests_per_minute=5),))
        assert rooms.rooms
        with redis_server.client() as client:
            assert client.hgetall("limits3:streams") == ({b"t1": b"1"} if with_redis else {})


def test_a_bad_redis_url_stops_the_start(settings: Settings) -> None:
    settings.REDIS_URL = "http://redis"
    with pytest.raises(ValueError, match="scheme"):
        configured(FakeSpent())


async def test_the_settings_say_what_to_do_without_redis(settings: Settings) -> None:
    settings.REDIS_URL, settings.LIMITS_WITHOUT_REDIS = "redis://127.0.0.1:1", "refuse"
    async with configured(FakeSpent()) as limiter:
        assert limiter.degraded
        with pytest.raises(Unavailable, match="cannot be checked"):
            await limiter.reserve("r1", grant(limits(requests_per_minute=5)), target(), wanted())
