"""Outcomes of requests, as gateways write them and pages read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.conf import settings
from django.utils import timezone

from gateway.planes.recording import outcomes as writer
from inference.gateway.measuring.outcomes import EndedFigures, OutcomeGroup, Outcomes, Refusal
from inference.gateway.measuring.sums import BUCKETS
from inference.operations.structure import StructureOutcome
from tenants import housekeeping
from tenants.directory.registry import DirectoryRegistry
from tenants.models import (
    ApiKey,
    RefusedRequest,
    RequestHour,
    RequestMinute,
    Tenant,
    TotalHour,
    TotalMinute,
)
from tests.tenants.making import make_key, make_tenant

CONFORMED = StructureOutcome.CONFORMED
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NAMES = ("tenant_id", "key_id", "outcome", "requests")


@pytest.fixture
async def registry(transactional_db: None) -> AsyncIterator[DirectoryRegistry]:
    registry = DirectoryRegistry()
    await registry.open()
    yield registry
    await registry.close()


@pytest.fixture
async def keys(registry: DirectoryRegistry) -> list[ApiKey]:
    """A key of each of two tenants."""

    def make() -> list[ApiKey]:
        return [make_key(make_tenant(slug))[0] for slug in ("acme", "globex")]

    made: list[ApiKey] = await database_sync_to_async(make)()
    return made


def group(
    key: ApiKey, at: datetime = NOON, outcome: str = "completed", **more: Any
) -> OutcomeGroup:
    minute = int(at.timestamp())
    made = OutcomeGroup(minute, key.tenant_id, key.pk, 0, "", "base", outcome, "stop", "", "")
    return made._replace(**more)


def refusal(key: ApiKey, id: str = "r1", at: datetime = NOON, **more: Any) -> Refusal:
    given: dict[str, Any] = {
        "version_id": 0, "adapter": "", "base_model": "", "model": "base", "surface": "api",
        "outcome": "refused", "status": 429, "code": "rate_limit_exceeded", "message": "Too many.",
        "limit_kind": "requests_per_minute", "limit_scope": "key", "total_s": 0.01,
    }  # fmt: skip
    return Refusal(
        id=id, started_at=at.timestamp(), tenant_id=key.tenant_id, key_id=key.pk, **given | more
    )


async def written(registry: DirectoryRegistry, counted: Outcomes) -> list[Refusal]:
    """Write the outcomes. Returns the refusals that the callback got."""
    told: list[Refusal] = []
    await writer.write(counted, registry, told.extend)
    return told


async def rows(model: Any, *names: str) -> list[tuple[Any, ...]]:
    order = [name for name in ("tenant_id", "at", "key_id", "outcome") if name in _fields(model)]
    found: list[tuple[Any, ...]] = await database_sync_to_async(
        lambda: list(model.objects.order_by(*order).values_list(*names))
    )()
    return found


def _fields(model: Any) -> set[str]:
    return {field.attname for field in model._meta.fields}


async def test_minutes_add_up_to_hours_and_keys_to_totals(
    registry: DirectoryRegistry, keys: Sequence[ApiKey]
) -> None:
    acme, globex = keys
    half_past = NOON + timedelta(minutes=30)
    for _ in range(2):  # the second is added to the first
        counted = Outcomes()
        for key, at, outcome in (
            (acme, NOON, "completed"), (acme, half_past, "completed"), (acme, NOON, "refused"),
            (globex, NOON, "completed"),
        ):  # fmt: skip
            counted.note(
                group(key, at, outcome),
                EndedFigures(10, 4, 6, 10**20, 0.015, 2.015, CONFORMED),
                None,
            )
        await written(registry, counted)
        assert counted.take() == ({}, [], [])
    assert await rows(RequestMinute, "at", *NAMES) == [
        (NOON, acme.tenant_id, acme.pk, "completed", 2),
        (NOON, acme.tenant_id, acme.pk, "refused", 2),
        (half_past, acme.tenant_id, acme.pk, "completed", 2),
        (NOON, globex.tenant_id, globex.pk, "completed", 2),
    ]
    assert await rows(RequestHour, *NAMES) == [
        (acme.tenant_id, acme.pk, "completed", 4),
        (acme.tenant_id, acme.pk, "refused", 2),
        (globex.tenant_id, globex.pk, "completed", 2),
    ]
    totals = await database_sync_to_async(list)(
        TotalHour.objects.order_by("tenant_id", "outcome").values_list(
            "tenant_id", "outcome", "requests", "cost"
        )
    )
    assert totals == [
        (acme.tenant_id, "completed", 4, 4 * 10**20),
        (acme.tenant_id, "refused", 2, 2 * 10**20),
        (globex.tenant_id, "completed", 2, 2 * 10**20),
        (None, "completed", 6, 6 * 10**20),
        (None, "refused", 2, 2 * 10**20),
    ]
    whole = await database_sync_to_async(
        lambda: (
            TotalMinute.objects.filter(tenant=None)
            .between(NOON, half_past + timedelta(hours=1))
            .figures()
            .get()
        )
    )()
    assert (whole["requests"], whole["completed"], whole["refused"]) == (8, 6, 2)
    assert (whole["prompt_tokens"], whole["decode_tokens"], whole["decode_s"]) == (80, 40, 16.0)
    assert (whole["conformed"], whole["malformed"], whole["unchecked"]) == (8, 0, 0)
    assert whole["first_tokens"] == [0, 8] + [0] * (BUCKETS - 2)


async def test_figures_come_by_steps_of_time(
    registry: DirectoryRegistry, keys: Sequence[ApiKey]
) -> None:
    counted = Outcomes()
    for minutes in (0, 1, 2, 59):
        counted.note(group(keys[0], NOON + timedelta(minutes=minutes)), EndedFigures(), None)
    await written(registry, counted)

    def found() -> list[tuple[datetime, int]]:
        sums = RequestMinute.objects.filter(tenant=keys[0].tenant_id)
        stepped = sums.figures("start", step=timedelta(minutes=2))
        return [(row["start"], row["requests"]) for row in stepped]

    assert await database_sync_to_async(found)() == [
        (NOON, 2), (NOON + timedelta(minutes=2), 1), (NOON + timedelta(minutes=58), 1),
    ]  # fmt: skip


async def test_gateways_that_write_at_once_wait_for_each_other_and_lose_nothing(
    registry: DirectoryRegistry, keys: Sequence[ApiKey]
) -> None:
    gateways = [Outcomes() for _ in range(4)]
    for _ in range(5):
        for number, counted in enumerate(gateways):
            order = list(range(8))[:: -1 if number % 2 else 1]
            for adapter in order:
                for key in keys:
                    one = group(key, adapter=f"adapter-{adapter}", code=f"code-{adapter}")
                    counted.note(one, EndedFigures(ttft_s=0.1), None)
        await asyncio.gather(*(written(registry, counted) for counted in gateways))
        assert [counted.take() for counted in gateways] == [({}, [], [])] * 4
    whole = await database_sync_to_async(
        lambda: TotalHour.objects.filter(tenant=None).figures().get()
    )()
    assert whole["requests"] == 5 * 4 * 8 * 2 == whole["first_tokens"][4]


async def test_a_refused_request_is_kept_as_it_was_once(
    registry: DirectoryRegistry, keys: Sequence[ApiKey]
) -> None:
    counted, said = Outcomes(), 'temperature is "hot\0", but must be a number'
    at = NOON + timedelta(microseconds=123_457)
    wrong: dict[str, Any] = {"status": 400, "code": "invalid_request", "trace_id": "ab" * 16}
    one = refusal(keys[0], at=at, message=said, model="a\0b", **wrong)
    limited = group(keys[0], outcome="refused")
    counted.note(limited, EndedFigures(), one)
    assert await written(registry, counted) == [one]
    counted.note(limited, EndedFigures(), one)
    await written(registry, counted)
    kept = await RefusedRequest.objects.aget()
    assert (kept.started_at, kept.key_id, kept.version_id) == (at, keys[0].pk, None)
    assert (kept.status, kept.code, kept.trace_id) == (400, "invalid_request", "ab" * 16)
    assert kept.message == said.replace("\0", "\ufffd") and kept.model == "a\ufffdb"


async def test_outcomes_of_a_deleted_tenant_are_skipped(
    registry: DirectoryRegistry, keys: Sequence[ApiKey]
) -> None:
    acme, globex = keys
    await database_sync_to_async(Tenant.objects.filter(pk=globex.tenant_id).delete)()
    counted = Outcomes()
    for key in keys:
        counted.note(group(key, outcome="refused"), EndedFigures(), refusal(key, id=str(key.pk)))
    await written(registry, counted)
    assert counted.take() == ({}, [], [])
    assert await rows(RequestHour, *NAMES) == [(acme.tenant_id, acme.pk, "refused", 1)]
    assert (await RefusedRequest.objects.aget()).tenant_id == acme.tenant_id


async def test_outcomes_wait_while_the_database_is_down(keys: Sequence[ApiKey]) -> None:
    closed = DirectoryRegistry(answer_s=0.2)
    await closed.open()
    await closed.close()
    counted = Outcomes()
    one = refusal(keys[0])
    counted.note(group(keys[0], outcome="refused"), EndedFigures(), one)
    assert await written(closed, counted) == []
    sums, refusals, _ = counted.take()
    assert [each.requests for each in sums.values()] == [1] and refusals == [one]


async def test_unwritable_outcomes_are_dropped(
    registry: DirectoryRegistry, keys: Sequence[ApiKey]
) -> None:
    counted = Outcomes()
    limited = group(keys[0], outcome="refused")
    counted.note(limited, EndedFigures(), refusal(keys[0], status=10**9))
    await written(registry, counted)
    assert counted.take() == ({}, [], [])
    assert await rows(RequestHour, *NAMES) == [(keys[0].tenant_id, keys[0].pk, "refused", 1)]
    assert not await RefusedRequest.objects.aexists()


async def test_old_rows_go(registry: DirectoryRegistry, keys: Sequence[ApiKey]) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    ages = [
        timedelta(hours=1),
        timedelta(days=3),
        timedelta(days=settings.REFUSED_REQUESTS_DAYS + 1),
        timedelta(days=settings.HISTORY_DAYS + 1),
    ]
    counted = Outcomes()
    for age in ages:
        at = now - age
        one = refusal(keys[0], id=str(age), at=at)
        counted.note(group(keys[0], at, "refused"), EndedFigures(), one)
    await written(registry, counted)
    await database_sync_to_async(housekeeping.forget_requests)()
    left = [len(await rows(model, "at")) for model in (RequestMinute, RequestHour)]
    assert left == [1, 3]
    totals = [len(await rows(model, "at")) for model in (TotalMinute, TotalHour)]
    assert totals == [2, 6]
    assert await RefusedRequest.objects.acount() == 2
