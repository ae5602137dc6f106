"""A new kind of limit needs one declaration and one migration: here `images_per_minute`, which
counts something that no other kind counts, in stores, refusals, headers, ceilings, table, API and
page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.template.loader import render_to_string

from frontend.views.limits import LimitsForm, lines_of
from inference.errors import RateLimitExceeded
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.interfaces.directory import Limits
from inference.interfaces.limiter import ReservationRequest, Room
from inference.link.accounts import Usage
from tenants.api.endpoints.limits import FiguresSerializer
from tenants.api.openai.document import rate_limits
from tenants.limits import ceilings
from tenants.limits.failover import Failover
from tenants.limits.kinds import KINDS
from tenants.limits.limiter import StoreLimiter
from tenants.limits.memory import MemoryStore
from tenants.limits.redis_store import RedisStore
from tenants.limits.state import LEASE_MS
from tenants.models import LimitScope, LimitSet
from tenants.models.limits import add_columns, in_bounds
from tests.limits.asking import (
    IMAGES,
    TIMEOUT_S,
    WITH_IMAGES,
    Clock,
    FakeSpent,
    grant,
    limits,
    target,
)

CALLER = grant(limits(images_per_minute=5, requests_per_minute=100))


class WiderLimitSet(models.Model):
    """`LimitSet` as it would be with the new declaration, on the same table."""

    author = models.CharField(max_length=16)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        app_label = "tests"
        managed = False
        db_table = "tenants_limitset"

    def __str__(self) -> str:
        return self.author


add_columns(WiderLimitSet, WITH_IMAGES.values())


class WiderFigures(FiguresSerializer):
    """The API's serializer for it."""

    class Meta:
        model = WiderLimitSet
        fields: ClassVar[tuple[str, ...]] = tuple(WITH_IMAGES)


def images(count: int) -> ReservationRequest:
    return ReservationRequest(10, 20, 20, {"images": count} if count else {})


# --- counting ------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "redis"])
async def limiter(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[StoreLimiter]:
    """On each store in turn."""
    local = MemoryStore(clock, WITH_IMAGES)
    redis = None
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
        redis = RedisStore(url, clock=clock, timeout_s=TIMEOUT_S, kinds=WITH_IMAGES)
    async with StoreLimiter(Failover(local, redis), FakeSpent(), "usd", WITH_IMAGES) as limiter:
        yield limiter


async def used(limiter: StoreLimiter) -> int:
    return (await limiter.used(CALLER.limits[0]))["images_per_minute"]


async def test_the_new_kind_is_counted_and_refused_in_its_own_words(limiter: StoreLimiter) -> None:
    reservation = await limiter.reserve("r1", CALLER, target(), images(3))
    assert reservation.rooms["images"] == Room(5, 2, 60)
    assert reservation.output_tokens is None, "it limits no output"
    with pytest.raises(RateLimitExceeded) as refused:
        await limiter.reserve("r2", CALLER, target(), images(3))
    assert refused.value.message == (
        "Rate limit reached for tenant `acme`: 5 images per minute; used 3, requested 3. "
        "Try again in 60 s."
    )
    assert refused.value.retry_after_s == 60
    with pytest.raises(RateLimitExceeded, match="Request too large for tenant `acme`: 5 images"):
        await limiter.reserve("r2", CALLER, target(), images(6))
    await limiter.reserve("r2", CALLER, target(), images(2))
    await limiter.reserve("r3", CALLER, target(), images(0))
    assert (await limiter.peek(CALLER.limits)).rooms["images"] == Room(5, 0, 60)


async def test_started_images_count_until_they_leave_the_window(
    limiter: StoreLimiter, clock: Clock
) -> None:
    for id, end in {"settled": Usage(prompt_tokens=8), "kept": None}.items():
        reservation = await limiter.reserve(id, CALLER, target(), images(1))
        await limiter.extend(reservation, 100)
        limiter.settle(id, end)
    await limiter.reserve("released", CALLER, target(), images(3))
    limiter.release("released")
    await limiter.flushed()
    assert await used(limiter) == 2
    clock.pass_s(61)
    assert await used(limiter) == 0


async def test_images_started_by_a_dead_gateway_stay_counted(
    limiter: StoreLimiter, clock: Clock
) -> None:
    other = StoreLimiter(
        Failover(limiter._failover.local, limiter._failover.redis), FakeSpent(), "usd", WITH_IMAGES
    )
    await other.reserve("r1", CALLER, target(), images(3))
    clock.pass_s(LEASE_MS / 1000)
    await limiter.reserve("r2", CALLER, target(), images(1))
    assert await used(limiter) == 4


# --- telling -------------------------------------------------------------------------------------


async def test_its_header_tells_what_is_left(clock: Clock) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    store = Failover(MemoryStore(clock, WITH_IMAGES))
    async with StoreLimiter(store, FakeSpent(), "usd", WITH_IMAGES) as limiter:
        scope = {"method": "POST", "path": "/v1/images/generations", "headers": []}
        exchange = InferenceExchange(scope, receive, send)
        exchange.reservation = await limiter.reserve("r1", CALLER, target(), images(3))
        await exchange.reply(200, b"{}")
    headers = dict(sent[0]["headers"])
    assert headers[b"x-ratelimit-limit-images"] == b"5"
    assert headers[b"x-ratelimit-remaining-images"] == b"2"
    assert headers[b"x-ratelimit-reset-images"] == b"1m0s"
    documented = set(rate_limits(WITH_IMAGES)) - set(rate_limits())
    assert documented == {name.decode() for name in headers if name.endswith(b"-images")}


# --- setting -------------------------------------------------------------------------------------


def test_the_lesser_of_operator_and_tenant_is_in_force() -> None:
    sets = {"operator": {"images_per_minute": 10}, "tenant": {"images_per_minute": 4}}
    assert ceilings.limits("t1", "tenant `acme`", sets, WITH_IMAGES) == (
        Limits("t1", "tenant `acme`", {"images_per_minute": 4}),
    )
    assert ceilings.limits("t1", "tenant `acme`", sets) == (), "those that know no images"


@pytest.fixture
def migrated(db: None) -> None:
    """Does what the migration would do, for the duration of a test."""
    with connection.schema_editor() as editor:
        field: Any = WiderLimitSet._meta.get_field(IMAGES.name)
        editor.add_field(WiderLimitSet, field)
        editor.remove_constraint(WiderLimitSet, in_bounds(KINDS.values()))
        editor.add_constraint(WiderLimitSet, in_bounds(WITH_IMAGES.values()))


@pytest.mark.usefixtures("migrated")
def test_its_column_is_stored_bounded_and_read() -> None:
    row = WiderLimitSet._default_manager.create(author="operator", images_per_minute=7)
    assert LimitSet.objects.get().pk == row.pk, "gateways that don't know it go on"
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_jsonb(l) FROM tenants_limitset l")
        sets = {"operator": json.loads(cursor.fetchone()[0])}
    assert ceilings.limits("t1", "", sets, WITH_IMAGES)[0].values == {"images_per_minute": 7}
    for value in (-1, 10**12 + 1):
        with pytest.raises(IntegrityError, match="limits_in_bounds"), transaction.atomic():
            WiderLimitSet._default_manager.update(images_per_minute=value)


def test_its_field_is_in_the_api() -> None:
    field = WiderFigures().fields[IMAGES.name]
    assert (field.help_text, field.required, field.allow_null) == (IMAGES.help, False, True)
    asked = WiderFigures(data={"images_per_minute": 5, "tokens_per_day": None})
    assert asked.is_valid() and asked.validated_data["images_per_minute"] == 5
    assert not WiderFigures(data={"images_per_minute": -1}).is_valid()
    assert not FiguresSerializer(data={"images_per_minute": 5}).is_valid()


def test_its_field_is_in_the_form() -> None:
    ceiling = {"images_per_minute": 100}

    def entered(value: str) -> LimitsForm:
        data = {"tenant-images_per_minute": value}
        return LimitsForm(LimitSet.Author.TENANT, {}, ceiling, data, kinds=WITH_IMAGES)

    text = entered("100").as_div()
    assert "Images per minute" in text and "At most 100." in text
    assert entered("100").is_valid() and entered("100").errors == {}
    assert entered("101").errors == {
        "images_per_minute": ["101 is above the ceiling of 100."],
    }


def test_its_line_and_bar_are_in_the_table() -> None:
    sets = {"operator": {"images_per_minute": 100}}
    ceiling = ceilings.ceiling(sets, WITH_IMAGES)
    used = {"images_per_minute": 40}
    *_, line = lines_of(LimitScope(), sets, ceiling, used, kinds=WITH_IMAGES)
    text = render_to_string("limits/table.html", {"lines": [line], "currency": "USD"})
    assert "Images per minute" in text and IMAGES.help in text
    assert 'max="100"' in text and 'value="40"' in text and "40 of 100" in text
