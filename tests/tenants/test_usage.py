"""The recorder writes each event once, whatever happens; the sums add up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection
from structlog.testing import capture_logs

from inference.grants import UsageRecord
from inference.wire import Usage
from tenants.models import ApiKey, Tenant, UsageEvent
from tenants.usage import BATCH, BatchRecorder, write
from tests.tenants.making import make_adapter, make_key, make_tenant, make_version

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def record(id: str, tenant_id: int = 1, key_id: int = 1, **fields: object) -> UsageRecord:
    usage = Usage(100, 40, 7, 2, 0.1, 0.2, 0.3, 0.9)
    made = UsageRecord(id, NOON, tenant_id, key_id, "base", "base", None, "e1", usage, "stop")
    return replace(made, **fields)  # type: ignore[arg-type]


class Ledger:
    """A `write` that keeps what it gets, and fails while `away`."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.away = False
        self.tried = threading.Event()
        self.threads: set[int] = set()

    def __call__(self, records: Sequence[UsageRecord]) -> None:
        self.tried.set()
        self.threads.add(threading.get_ident())
        if self.away:
            raise OperationalError("away")
        self.batches.append([record.id for record in records])

    @property
    def ids(self) -> list[str]:
        return [id for batch in self.batches for id in batch]


async def test_leaving_writes_the_rest_in_batches_and_order() -> None:
    ledger = Ledger()
    async with BatchRecorder(ledger) as recorder:
        for number in range(2 * BATCH + 1):
            recorder.record(record(str(number)))
    assert ledger.ids == [str(number) for number in range(2 * BATCH + 1)]
    assert max(map(len, ledger.batches)) == BATCH
    assert threading.get_ident() not in ledger.threads


async def test_a_failed_batch_is_written_later() -> None:
    ledger = Ledger()
    ledger.away = True
    async with BatchRecorder(ledger) as recorder:
        recorder.record(record("a"))
        assert await asyncio.to_thread(ledger.tried.wait, 30)
        recorder.record(record("b"))
        ledger.away = False
    assert ledger.ids == ["a", "b"]


async def test_what_does_not_fit_is_dropped_and_told() -> None:
    ledger = Ledger()
    with capture_logs() as logs:
        async with BatchRecorder(ledger, capacity=3) as recorder:
            for id in "abcde":
                recorder.record(record(id))
    assert ledger.ids == ["a", "b", "c"]
    assert {"event": "usage_dropped", "count": 2, "log_level": "error"} in logs


async def test_what_cannot_be_written_at_the_end_is_told() -> None:
    ledger = Ledger()
    ledger.away = True
    with capture_logs() as logs:
        async with BatchRecorder(ledger, last_attempts=2) as recorder:
            recorder.record(record("a"))
    assert {"event": "usage_dropped", "count": 1, "log_level": "error"} in logs


# --- In PostgreSQL -------------------------------------------------------------------------------


async def test_the_whole_way(async_db: None) -> None:
    tenant = await sync_to_async(make_tenant)("acme")
    key, _ = await sync_to_async(make_key)(tenant)
    async with BatchRecorder() as recorder:
        recorder.record(record("a", tenant.pk, key.pk))
    event = await UsageEvent.objects.aget()
    assert (event.id, event.started_at, event.finish_reason) == ("a", NOON, "stop")
    assert (event.prompt_tokens, event.cached_tokens) == (100, 40)
    assert (event.completion_tokens, event.reasoning_tokens) == (7, 2)
    assert (event.queue_s, event.load_s, event.ttft_s, event.total_s) == (0.1, 0.2, 0.3, 0.9)


@pytest.mark.django_db(transaction=True)
def test_an_event_is_written_once(tenant: Tenant) -> None:
    key, _ = make_key(tenant)
    batch = [record("a", tenant.pk, key.pk), record("b", tenant.pk, key.pk)]
    write(batch)
    write([*batch, record("a", tenant.pk, key.pk, finish_reason="length"), batch[0]])
    assert list(UsageEvent.objects.order_by("id").values_list("id", "finish_reason")) == [
        ("a", "stop"),
        ("b", "stop"),
    ]


@pytest.mark.django_db(transaction=True)
def test_a_lost_connection_is_made_again(tenant: Tenant) -> None:
    key, _ = make_key(tenant)
    with connection.cursor() as cursor, pytest.raises(OperationalError):
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(OperationalError):
        write([record("a", tenant.pk, key.pk)])
    write([record("a", tenant.pk, key.pk)])
    assert UsageEvent.objects.get().id == "a"


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_written_does_not_stop_the_others(tenant: Tenant) -> None:
    key, _ = make_key(tenant)
    with capture_logs() as logs:
        write(
            [
                record("good", tenant.pk, key.pk),
                record("key gone", tenant.pk, key.pk + 1000),
                record("version gone", tenant.pk, key.pk, version_id=12345),
                record("tenant gone", tenant.pk + 1000, key.pk),
                record("too long", tenant.pk, key.pk, finish_reason="x" * 65),
                record("too many", tenant.pk, key.pk, usage=Usage(prompt_tokens=1 << 40)),
                record("good too", tenant.pk, key.pk),
            ]
        )
    written = dict(UsageEvent.objects.values_list("id", "key_id"))
    assert written == {"good": key.pk, "key gone": None, "version gone": key.pk, "good too": key.pk}
    told = [log["id"] for log in logs if log["event"] == "usage_not_written"]
    assert told == ["tenant gone", "too long", "too many"]


@pytest.mark.django_db(transaction=True)
def test_a_bill_survives_its_key_and_adapter(tenant: Tenant) -> None:
    key, _ = make_key(tenant)
    version = make_version(make_adapter(tenant))
    write([record("a", tenant.pk, key.pk, model="support@1", version_id=version.pk)])
    version.adapter.retire()
    ApiKey.objects.all().delete()
    (line,) = tenant.usage.sums(["adapter", "key"])
    assert (line["adapter"], line["key_id"], line["prompt_tokens"]) == ("support", None, 100)


@pytest.mark.django_db(transaction=True)
def test_sums(tenant: Tenant) -> None:
    other = make_tenant()
    one, two = make_key(tenant)[0], make_key(tenant)[0]
    foreign = make_key(other)[0]
    plans = [
        (0, one, "base"), (1, one, "support"), (25, one, "support@3"), (25, two, "json"),
        (49, two, "base"),
    ]  # fmt: skip
    for hours, key, model in plans:
        started_at = NOON + timedelta(hours=hours)
        write([record(f"{hours}{model}", tenant.pk, key.pk, model=model, started_at=started_at)])
    write([record("theirs", other.pk, foreign.pk)])

    def sums(*by: str) -> list[tuple[object, ...]]:
        columns = [*("key_id" if name == "key" else name for name in by), "requests"]
        columns += ["prompt_tokens", "completion_tokens"]
        return [tuple(line[column] for column in columns) for line in tenant.usage.sums(by)]

    days = [NOON.replace(hour=0) + timedelta(days=n) for n in range(3)]
    assert sums("day") == [
        (days[0], 2, 200, 14), (days[1], 2, 200, 14), (days[2], 1, 100, 7),
    ]  # fmt: skip
    assert sums("key") == [(one.pk, 3, 300, 21), (two.pk, 2, 200, 14)]
    assert sums("adapter") == [
        ("json", 1, 100, 7), ("support", 2, 200, 14), (None, 2, 200, 14),
    ]  # fmt: skip
    assert [line[:2] for line in sums("model")] == [
        ("base", 2), ("json", 1), ("support", 1), ("support@3", 1),
    ]  # fmt: skip
    assert len(sums("hour")) == 4
    assert len(sums("day", "adapter")) == 5
    assert [line["cached_tokens"] for line in other.usage.sums(["day"])] == [40]
