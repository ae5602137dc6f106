"""Background responses in PostgreSQL: queued, leased, begun, and ended once."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from inference.errors import GenerationTimeout, InferenceError, RateLimitExceeded
from inference.gateway.lines.frames import TURNS_OF_A_RUN
from inference.gateway.lines.seals import background_id, line_id
from inference.interfaces.stored import EndedResponse, Queued, ResponseStatus, StoredResponses
from tenants.batch_states import Status
from tenants.batches import response_leases
from tenants.batches.leases import Lost, Result
from tenants.batches.response_leases import ResponseLease
from tenants.content import responses, retention
from tenants.content.responses import PostgresResponses
from tenants.content.store import PostgresContents
from tenants.housekeeping import forget_content
from tenants.models import ApiKey, StoredContent, Tenant
from tenants.models.background import BackgroundResponse
from tests.inference.answers import MemoryResponses
from tests.tenants.making import make_key, make_member, make_tenant

MOST = 3
SAID, DONE = b'{"queued"}', b'{"done"}'
COMPLETED = EndedResponse("completed", DONE)


def keeping(slug: str = "acme", days: int = 7) -> ApiKey:
    """A key of a tenant that stores content for `days` days."""
    tenant = make_tenant(slug)
    retention.keep_for(tenant, days)
    return make_key(tenant)[0]


@pytest.fixture
async def key(transactional_db: None) -> ApiKey:
    return await sync_to_async(keeping)()


@pytest.fixture
async def stored(transactional_db: None) -> AsyncIterator[PostgresResponses]:
    contents = PostgresContents()
    await contents.open()
    yield PostgresResponses(contents, most=MOST)
    await contents.close()


@pytest.fixture(params=["PostgreSQL", "memory"])
def either(request: pytest.FixtureRequest, stored: PostgresResponses) -> StoredResponses:
    return stored if request.param == "PostgreSQL" else MemoryResponses(MOST)


def queued(key: ApiKey, **changed: Any) -> Queued:
    batch = background_id(secrets.token_hex(16))
    fields: dict[str, Any] = {
        "tenant_id": key.tenant_id,
        "key_id": key.pk,
        "id": line_id(batch, 1),
        "batch": batch,
        "created_at": datetime.now(UTC),
        "seal": "s",
        "record": SAID,
    }
    return Queued(**(fields | changed))


# --- As gateways use them ------------------------------------------------------------------------


async def test_one_is_queued_begun_and_ended_once(either: StoredResponses, key: ApiKey) -> None:
    one = queued(key)
    of = (one.tenant_id, one.id)
    assert await either.queue(one) == one.id
    assert await either.status(*of) == ResponseStatus("queued")
    assert await either.read(*of) == SAID
    assert await either.begin(*of, 1024) == SAID
    assert await either.begin(*of, 2048) == SAID
    assert await either.begin(*of, 1024) is None, "a higher turn has begun"
    assert not await either.end(*of, 1024, COMPLETED)
    assert await either.end(*of, 2048, COMPLETED)
    assert await either.status(*of) == ResponseStatus("completed")
    assert await either.read(*of) == DONE
    assert not await either.end(*of, 2048, EndedResponse("failed", b"{}"))
    assert await either.begin(*of, 4096) is None
    await either.cancel(*of)
    assert await either.status(*of) == ResponseStatus("completed")


async def test_one_that_is_cancelled_or_deleted_has_no_answer(
    either: StoredResponses, key: ApiKey
) -> None:
    one, two = queued(key), queued(key)
    for each in (one, two):
        await either.queue(each)
        await either.begin(each.tenant_id, each.id, 1024)
    await either.cancel(one.tenant_id, one.id)
    assert await either.delete(two.tenant_id, two.id)
    for each in (one, two):
        assert not await either.end(each.tenant_id, each.id, 1024, COMPLETED)
        assert await either.begin(each.tenant_id, each.id, 2048) is None
    assert await either.status(one.tenant_id, one.id) == ResponseStatus("cancelled")
    assert await either.read(one.tenant_id, one.id) == SAID
    assert await either.status(two.tenant_id, two.id) is None
    assert await either.read(two.tenant_id, two.id) is None


async def test_another_tenants_response_is_not_found(either: StoredResponses, key: ApiKey) -> None:
    other = await sync_to_async(keeping)("globex")
    one = queued(key)
    await either.queue(one)
    assert await either.status(other.tenant_id, one.id) is None
    assert await either.begin(other.tenant_id, one.id, 1024) is None
    assert not await either.end(other.tenant_id, one.id, 0, COMPLETED)
    await either.cancel(other.tenant_id, one.id)
    assert not await either.delete(other.tenant_id, one.id)
    assert await either.status(one.tenant_id, one.id) == ResponseStatus("queued")


async def test_the_same_request_is_queued_once(either: StoredResponses, key: ApiKey) -> None:
    first, again, other = queued(key, once="a"), queued(key, once="a"), queued(key, once="b")
    assert await either.queue(first) == first.id
    assert await either.queue(again) == first.id
    assert await either.queue(other) == other.id
    assert await either.read(again.tenant_id, again.id) is None


async def test_the_number_of_queued_responses_per_tenant_is_bounded(
    either: StoredResponses, key: ApiKey
) -> None:
    other = await sync_to_async(keeping)("globex")
    those = [queued(key) for _ in range(MOST)]
    for one in those:
        await either.queue(one)
    with pytest.raises(RateLimitExceeded, match=f"at most {MOST} are allowed"):
        await either.queue(queued(key))
    assert await either.queue(queued(other))
    await either.cancel(those[0].tenant_id, those[0].id)
    assert await either.queue(queued(key))


async def test_the_bytes_of_queued_responses_are_bounded(
    stored: PostgresResponses, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MOST_BYTES", 1)
    monkeypatch.setattr(
        responses, "QUEUE", responses.QUEUE.replace(str(64 << 20), str(2 * len(SAID)))
    )
    for _ in range(2):
        await stored.queue(queued(key))
    with pytest.raises(RateLimitExceeded, match="bytes"):
        await stored.queue(queued(key))


async def test_nothing_is_queued_for_tenants_that_keep_no_content(
    stored: PostgresResponses,
) -> None:
    tenant = await sync_to_async(make_tenant)("never")
    key, _ = await sync_to_async(make_key)(tenant)
    assert await stored.queue(queued(key)) is None
    assert not await BackgroundResponse.objects.aexists()


async def test_it_is_encrypted_and_kept_as_long_as_content_is(
    stored: PostgresResponses, key: ApiKey
) -> None:
    one = queued(key)
    await stored.queue(one)
    content = await StoredContent.objects.aget()
    assert SAID not in bytes(content.data)
    assert content.expires_at - one.created_at == timedelta(days=7)
    await stored.begin(one.tenant_id, one.id, 1024)
    await stored.end(one.tenant_id, one.id, 1024, COMPLETED)
    ended = await StoredContent.objects.aget()
    assert DONE not in bytes(ended.data) and ended.expires_at == content.expires_at
    await StoredContent.objects.aupdate(expires_at=timezone.now())
    assert await stored.read(one.tenant_id, one.id) is None
    await sync_to_async(forget_content)()
    assert not await BackgroundResponse.objects.aexists(), "it goes with its content"


async def test_a_response_whose_key_was_destroyed_is_neither_run_nor_stored(
    stored: PostgresResponses, key: ApiKey
) -> None:
    one = queued(key)
    await stored.queue(one)
    await stored.begin(one.tenant_id, one.id, 1024)
    tenant = await Tenant.objects.aget(pk=key.tenant_id)
    member = await sync_to_async(make_member)(tenant, "owner")
    await sync_to_async(retention.destroy)(tenant, member)
    assert not await stored.end(one.tenant_id, one.id, 1024, COMPLETED)
    assert await stored.begin(one.tenant_id, one.id, 2048) is None
    await sync_to_async(retention.keep_for)(tenant, 7)
    assert not await stored.end(one.tenant_id, one.id, 2048, COMPLETED), "another key's"


# --- As workers use them -------------------------------------------------------------------------


def make(key: ApiKey, **fields: Any) -> BackgroundResponse:
    """A row whose content is never read."""
    (content_key,) = key.tenant.content_keys.all()
    one, now = queued(key), timezone.now()
    content = StoredContent.objects.create(
        tenant=key.tenant, kind="response", name=one.id, content_key=content_key,
        at=now, expires_at=now + timedelta(days=7), data=b"",
    )  # fmt: skip
    given: dict[str, Any] = {"created_at": now, "expires_at": now + timedelta(hours=24)}
    return BackgroundResponse.objects.create(
        id=one.batch, tenant=key.tenant, key=key, content=content, size_bytes=9, seal="s",
        **(given | fields),
    )  # fmt: skip


def claim(most: int = 1) -> list[ResponseLease]:
    return [*ResponseLease.claim(most)]


def lapse(one: BackgroundResponse) -> None:
    BackgroundResponse.objects.filter(pk=one.pk).update(
        leased_until=timezone.now() - timedelta(minutes=1)
    )


@pytest.fixture
def owner(db: None) -> ApiKey:
    return keeping()


def test_it_belongs_to_one_worker_until_its_lease_expires(owner: ApiKey) -> None:
    one = make(owner)
    (first,) = claim(9)
    assert (first.id, first.run, first.size_bytes) == (one.pk, 1, 9)
    assert first.opening.created_at == one.created_at.timestamp()
    assert not claim()
    assert first.renew() is Status.IN_PROGRESS
    one.refresh_from_db()
    assert one.status == "queued"
    first.begun = True
    first.renew()
    one.refresh_from_db()
    assert one.status == "in_progress"
    lapse(one)
    (second,) = claim()
    assert second.run == 2
    with pytest.raises(Lost):
        first.renew()
    first.finish(Status.EXPIRED)
    first.release()
    assert not claim(), "it is not the first one's to end or to give back"
    second.release()
    assert claim()


def test_it_is_one_line_whose_body_gateways_know(owner: ApiKey) -> None:
    make(owner)
    (lease,) = claim()
    source = lease.open()
    ((line, body),) = source.ahead()
    assert (line.number, line.size, body, source.exhausted) == (1, 9, b"", True)
    assert source.body(line) == b""


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_an_ended_response_is_not_run_and_does_not_change(owner: ApiKey, status: str) -> None:
    one = make(owner)
    (lease,) = claim()
    BackgroundResponse.objects.update(status=status, leased_until=None)
    with pytest.raises(Lost):
        lease.renew()
    lease.renew([Result(1, 503, b"", code="engine_failed")])
    lease.finish(Status.COMPLETED)
    one.refresh_from_db()
    assert (one.status, one.code) == (status, "")
    assert not claim()


@pytest.mark.parametrize(
    ("results", "ending", "code"),
    [
        ([Result(1, 503, b"", code="engine_failed")], Status.COMPLETED, "engine_failed"),
        ([], Status.CANCELLED, "invalid_api_key"),
        ([], Status.EXPIRED, GenerationTimeout.code),
        ([Result(1, 200, b"")], Status.COMPLETED, InferenceError.code),
    ],
    ids=["an engine", "its key", "its time", "nobody knows"],
)
def test_it_fails_if_no_gateway_stored_an_answer(
    owner: ApiKey, results: list[Result], ending: Status, code: str
) -> None:
    one = make(owner)
    (lease,) = claim()
    if results:
        lease.renew(results)
    lease.finish(ending, code if ending is Status.CANCELLED else "")
    one.refresh_from_db()
    assert (one.status, one.code, one.leased_until) == ("failed", code, None)


def test_a_response_that_is_never_run_fails_after_its_deadline(owner: ApiKey) -> None:
    one = make(owner, expires_at=timezone.now())
    late = make(owner)
    response_leases.expire()
    found = BackgroundResponse.objects.values_list("pk", "status", "code")
    assert {*found} == {(one.pk, "failed", GenerationTimeout.code), (late.pk, "queued", "")}


def test_a_response_that_cannot_be_decrypted_is_stopped(owner: ApiKey) -> None:
    make(owner)
    (lease,) = claim()
    retention.destroy(owner.tenant, make_member(owner.tenant, "owner"))
    with pytest.raises(Lost):
        lease.renew()


def test_tenants_take_turns_and_each_has_a_bounded_number(
    owner: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = keeping("globex")
    mine = [make(owner).pk for _ in range(response_leases.TENANT_AT_ONCE + 2)]
    late = make(other).pk
    assert {one.id for one in claim(2)} == {mine[0], late}
    assert {one.id for one in claim(99)} == {*mine[1 : response_leases.TENANT_AT_ONCE]}
    assert not claim(99)
    assert not claim(0)


def test_turns_of_a_later_lease_are_higher(owner: ApiKey) -> None:
    """So that answers to an earlier lease's lines are dropped."""
    one = make(owner, run=3)
    (lease,) = claim()
    assert lease.run * TURNS_OF_A_RUN > (one.run + 1) * TURNS_OF_A_RUN - 1


def test_the_database_deletes_it_with_its_content(owner: ApiKey) -> None:
    make(owner)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM tenants_storedcontent")
    assert not BackgroundResponse.objects.exists()
