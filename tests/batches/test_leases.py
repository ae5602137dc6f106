"""One worker at a time leases a batch, and only the holder of the latest lease writes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob

from inference.link.accounts import Usage
from tenants.batch_states import Status
from tenants.batches import batch_leases
from tenants.batches.batch_leases import BatchLease
from tenants.batches.leases import Lost, Result
from tenants.models import ApiKey, Batch, Tenant
from tests.tenants.making import make_batch, make_key, make_tenant


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return make_key(tenant)[0]


def claim() -> BatchLease | None:
    """A lease of one batch, if there is one to run."""
    return next(iter(BatchLease.claim(1)), None)


def lapse(batch: Batch) -> None:
    Batch.objects.filter(pk=batch.pk).update(leased_until=timezone.now() - timedelta(seconds=1))


def test_a_batch_belongs_to_one_worker_until_its_lease_expires(key: ApiKey) -> None:
    batch = make_batch(key)
    first = claim()
    assert first is not None and (first.id, first.run, first.done) == (batch.pk, 1, frozenset())
    assert claim() is None
    assert first.renew([Result(3, 200, b"{}")]) is Status.IN_PROGRESS
    lapse(batch)
    second = claim()
    assert second is not None and (second.run, [*second.done]) == (2, [3])


def test_a_worker_that_lost_its_lease_writes_nothing(key: ApiKey) -> None:
    batch = make_batch(key)
    first = claim()
    lapse(batch)
    second = claim()
    assert first is not None and second is not None
    with pytest.raises(Lost):
        first.renew([Result(1, 200, b"first")])
    with pytest.raises(Lost):
        first.finish(Status.COMPLETED)
    second.renew([Result(1, 200, b"second"), Result(2, 500, b"{}")])
    second.renew([Result(1, 200, b"second")])  # a repeat of a result that may have been written
    batch.refresh_from_db()
    assert (batch.completed, batch.failed, batch.status) == (1, 1, Status.IN_PROGRESS)
    assert [bytes(one.body) for one in batch.lines.all()] == [b"second", b"{}"]
    first.release()
    assert claim() is None, "it is not the first one's to give back"
    second.release([Result(4, 200, b"{}")])
    third = claim()
    assert third is not None and third.done == {1, 2, 4}


def test_tokens_count_with_the_answers(key: ApiKey) -> None:
    batch = make_batch(key)
    lease = claim()
    assert lease is not None
    one, two = Usage(10, 4, 5, 1), Usage(20, 0, 7)
    lease.renew([Result(1, 200, b"{}", one)])
    lease.renew([Result(1, 200, b"{}", one), Result(2, 502, b"{}", two)])
    batch.refresh_from_db()
    assert (batch.prompt_tokens, batch.cached_tokens) == (30, 4)
    assert (batch.completion_tokens, batch.reasoning_tokens) == (12, 1)


def test_the_time_of_an_answer_is_its_engines(key: ApiKey) -> None:
    batch, lease = make_batch(key), claim()
    assert lease is not None
    waited = Usage(1, 0, 1, queue_s=1.0, load_s=0.5, ttft_s=1.6, total_s=2.0)
    lease.renew([Result(1, 200, b"{}", waited), Result(2, 400, b"{}")])
    times = batch.lines.order_by("number").values_list("first_token_ms", "total_ms")
    assert [*times] == [(100.0, 500.0), (None, None)]


def test_answers_are_stored_in_bounded_groups(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL accepts no value of a gigabyte, and answers may be long."""
    monkeypatch.setattr(batch_leases, "STORE_BYTES", 10)
    batch = make_batch(key)
    lease = claim()
    assert lease is not None
    sizes = [6, 4, 1, 25, 3, 3]
    with CaptureQueriesContext(connection) as asked:
        results = [Result(n, 200, b"x" * size) for n, size in enumerate(sizes, start=1)]
        lease.renew(results)
    stored = [one["sql"] for one in asked if "INSERT INTO tenants_batchline" in one["sql"]]
    assert len(stored) == 4, "6 and 4, 1, 25, 3 and 3"
    assert [len(one.body) for one in batch.lines.order_by("number")] == sizes
    batch.refresh_from_db()
    assert batch.completed == len(sizes)


def test_which_batches_run(key: ApiKey) -> None:
    for status in Status:
        ended = status not in ("validating", "in_progress", "finalizing", "cancelling")
        make_batch(key, status=status, ended_at=timezone.now() if ended else None)
    running = []
    while (lease := claim()) is not None:
        running.append(Batch.objects.get(pk=lease.id).status)
    assert sorted(running) == ["cancelling", "in_progress"]


def test_tenants_take_turns_and_each_has_a_bounded_number(key: ApiKey) -> None:
    other = make_key(make_tenant())[0]
    for _ in range(batch_leases.TENANT_AT_ONCE + 1):
        make_batch(key)
    late = make_batch(other)
    had = []
    while (lease := claim()) is not None:
        had.append(lease.id)
    assert len(had) == batch_leases.TENANT_AT_ONCE + 1
    assert had.index(late.pk) == 1, "after the first of the tenant that came before"


def test_a_finished_batch_is_finalizing_and_queued_to_be_written(key: ApiKey) -> None:
    batch = make_batch(key)
    lease = claim()
    assert lease is not None
    lease.finish(Status.CANCELLED, "api_key_revoked")
    batch.refresh_from_db()
    assert (batch.status, batch.ending) == (Status.FINALIZING, Status.CANCELLED)
    assert [one["message"] for one in batch.errors] == [
        "The batch's API key can no longer be used: `api_key_revoked`."
    ]
    (job,) = ProcrastinateJob.objects.all()
    assert (job.task_name, job.args) == ("write_batch", {"batch_id": batch.pk})
    with pytest.raises(Lost):
        lease.renew()
