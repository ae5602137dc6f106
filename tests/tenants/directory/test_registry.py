"""What gateways record about themselves and their engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
from channels.db import database_sync_to_async
from django.utils import timezone

from inference.gateway.fleet.demand import Demand
from inference.link.accounts import Usage
from inference.link.engine_info import ModelInfo
from tenants.directory.registry import DirectoryRegistry
from tenants.models import BaseModel, EngineHour, GatewayProcess
from tenants.models.fleet.engine_hours import SLOTS
from tests.tenants.making import make_key, make_tenant
from tests.tenants.spending import spend


@pytest.fixture
async def registry(transactional_db: None) -> AsyncIterator[DirectoryRegistry]:
    registry = DirectoryRegistry()
    await registry.open()
    yield registry
    await registry.close()


def info(rank: int = 16) -> ModelInfo:
    modules = {"model.layers.0.self_attn.q_proj": (64, 32)}
    return ModelInfo("org/base", 512, 8, rank, 4096, modules, "vllm")


async def stored() -> BaseModel:
    return await BaseModel.objects.aget()


async def test_a_base_model_is_noted_once(registry: DirectoryRegistry) -> None:
    await registry.note_model(info())
    first = await stored()
    assert (first.engine, first.max_model_len, first.max_lora_rank) == ("vllm", 512, 16)
    assert first.modules == {"model.layers.0.self_attn.q_proj": [64, 32]}
    await registry.note_model(info())
    assert (await stored()).updated_at == first.updated_at
    await registry.note_model(info(rank=32))
    changed = await stored()
    assert (changed.pk, changed.max_lora_rank) == (first.pk, 32)
    assert changed.updated_at > first.updated_at and changed.created_at == first.created_at


def last_beat(url: str, ago: timedelta) -> datetime:
    at = timezone.now() - ago
    GatewayProcess.objects.filter(url=url).update(heartbeat_at=at)
    return at


async def test_a_gateway_is_alive_for_ten_seconds_after_a_beat(registry: DirectoryRegistry) -> None:
    for _ in range(2):
        assert await registry.beat("http://a") == ["http://a"]
    assert await registry.beat("http://b") == ["http://a", "http://b"]
    await database_sync_to_async(last_beat)("http://a", timedelta(seconds=11))
    assert await registry.beat("http://b") == ["http://b"]
    alive = GatewayProcess.objects.alive().values_list("url", flat=True)
    assert await database_sync_to_async(list)(alive) == ["http://b"]
    await database_sync_to_async(last_beat)("http://a", timedelta(days=2))
    await registry.beat("http://b")
    assert await database_sync_to_async(GatewayProcess.objects.count)() == 1
    await registry.forget("http://b")
    assert not await database_sync_to_async(GatewayProcess.objects.exists)()


async def test_gateways_hear_what_the_others_see_as_long_as_they_live(
    registry: DirectoryRegistry,
) -> None:
    for url in ("http://a", "http://b"):
        await registry.beat(url)
    seen = {"base": Demand(1, 2, 3, 4, 5)}
    assert await registry.share_demand("http://a", seen) == [{}]
    assert await registry.share_demand("http://b", {}) == [seen]
    await database_sync_to_async(last_beat)("http://a", timedelta(seconds=11))
    assert await registry.share_demand("http://b", {}) == []


async def test_todays_overflow_is_added_up(registry: DirectoryRegistry) -> None:
    assert await registry.overflowed_today() == 0
    key, _ = await database_sync_to_async(make_key)(
        await database_sync_to_async(make_tenant)("acme")
    )
    spent, now = database_sync_to_async(spend), timezone.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for at in (midnight, now):
        await spent(key, at, Usage(100, 40, 7), overflow=True)
    await spent(key, midnight - timedelta(seconds=1), Usage(10_000), overflow=True)
    await spent(key, now, Usage(1_000))
    assert await registry.overflowed_today() == 2 * 107


async def test_an_engine_is_there_once_however_many_gateways_say_so(
    registry: DirectoryRegistry,
) -> None:
    engines = {"engine-1": "org/base", "engine-2": "org/base"}
    for _ in range(2):
        await registry.note_engines(engines)
        await registry.note_engines({"engine-1": "org/base"})
    rows = [row async for row in EngineHour.objects.order_by("engine_id")]
    assert {row.engine_id for row in rows} == set(engines)
    # Another slot of five minutes, or another hour, may have begun in between.
    assert all(0 < row.slots < 1 << SLOTS and row.slots.bit_count() <= 2 for row in rows)
    hour = timedelta(hours=1)
    start = rows[0].hour
    counted = await database_sync_to_async(EngineHour.objects.by_model)(start, start + 2 * hour)
    assert counted == {"org/base": sum(row.slots.bit_count() for row in rows) / SLOTS}
