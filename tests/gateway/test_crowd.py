"""The generated rows of a busy installation are consistent with what Lorikeet itself writes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models import Count, F, Q, Sum
from pytest_django import DjangoDbBlocker

from demo.crowd import Size, outcomes, usage
from demo.crowd.rows import BASES, LONG_NAME, Rows
from tenants.billing import reconciliation
from tenants.models import (
    LIVE,
    AdapterVersion,
    Alias,
    ApiKey,
    AuditEntry,
    Conversation,
    Membership,
    Price,
    RefusedRequest,
    RequestHour,
    Role,
    State,
    Tenant,
    TotalHour,
    UsageEvent,
    UsageRollup,
    User,
)
from tests.tenants.making import make_tenant

pytestmark = pytest.mark.django_db
UNTIL = datetime(2026, 11, 1, 15, tzinfo=UTC)
SIZE = Size(tenants=20, adapters=300, events=3_000, audit_entries=500, until=UNTIL)


@pytest.fixture(scope="class")
def crowd(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[list[Tenant]]:
    """The tenants of rows that are generated once, in a transaction that is rolled back after the
    class; its tests use savepoints."""
    with django_db_blocker.unblock(), transaction.atomic():
        tenants = Rows(SIZE).make()
        usage.make(SIZE, [tenant.pk for tenant in tenants], BASES, lambda *_: None)
        outcomes.make(SIZE, [tenant.pk for tenant in tenants])
        yield tenants
        transaction.set_rollback(True)


@pytest.mark.usefixtures("crowd")
class TestCrowd:
    def test_the_crowd_has_every_kind_of_data(self, crowd: list[Tenant]) -> None:
        assert len(crowd) == Tenant.objects.count() == SIZE.tenants
        assert crowd[1].name == LONG_NAME and len(LONG_NAME) == 60
        assert crowd[0].adapters.count() == SIZE.adapters // 5
        assert set(AdapterVersion.objects.values_list("state", flat=True)) == set(State)
        assert AuditEntry.objects.filter(action="deleted").count() == SIZE.audit_entries // 4
        assert Conversation.objects.exclude(shared_as=None).exists()
        assert not User.objects.exclude(password__startswith="!").exists()
        assert ApiKey.objects.filter(revoked_at=None).exists()

    def test_every_tenant_has_one_owner_and_nothing_of_others(self) -> None:
        owners = Membership.objects.filter(role=Role.OWNER).values("tenant").annotate(n=Count("pk"))
        assert [row["n"] for row in owners] == [1] * SIZE.tenants
        assert not Alias.objects.exclude(version__state=State.READY).exists()
        assert not Alias.objects.exclude(name=LIVE, version__adapter=F("adapter")).exists()
        foreign = Q(key__tenant=F("tenant")) & (
            Q(version=None) | Q(version__adapter__tenant=F("tenant"))
        )
        assert not UsageEvent.objects.exclude(foreign).exists()

    def test_the_ledger_agrees_with_itself(self) -> None:
        assert UsageEvent.objects.count() == SIZE.events
        months = reconciliation.months()  # other tests' too: partitions stay
        assert sum(UsageEvent.objects.between(*month).exists() for month in months) == 14
        assert [one for month in months for one in reconciliation.rollup_differences(*month)] == []
        assert reconciliation.journal_differences() == []
        assert not any(reconciliation.drifts())
        assert UsageRollup.objects.filter(hour__gte=UNTIL).count() == 0

    def test_figures_of_requests_are_those_of_the_events(self) -> None:
        since = UNTIL - timedelta(days=settings.HISTORY_DAYS)
        events = UsageEvent.objects.filter(started_at__gte=since)
        told = events.aggregate(n=Count("pk"), cost=Sum("cost"))
        refused = RefusedRequest.objects.count()
        everything = (UNTIL - timedelta(days=3660), UNTIL)
        for figures in (RequestHour.objects.all(), TotalHour.objects.filter(tenant=None)):
            (found,) = figures.between(*everything).figures()
            assert (found["requests"] - found["refused"], found["cost"]) == (
                told["n"],
                told["cost"],
            )
            assert found["refused"] == refused > 0
            buckets = found["first_tokens"]
            assert sum(buckets) == told["n"] and buckets[0] == 0
            assert sum(found["totals"]) == found["completed"]

    def test_everything_is_priced_as_the_ledger_prices_it(self) -> None:
        seen = set()
        for event in UsageEvent.objects.select_related("version"):
            uncached = event.prompt_tokens - event.cached_tokens
            assert event.cost == (
                uncached * event.prompt_price
                + event.cached_tokens * event.cached_prompt_price
                + event.completion_tokens * event.output_price
            )
            seen.add((event.started_at, event.version, event.base_model, event.prompt_price))
        prices = [*Price.objects.select_related("base_model").order_by("-starts_at")]
        assert all(
            price == in_force(prices, at, version, base) for at, version, base, price in seen
        )
        assert len({price for *_, price in seen}) == 5


def in_force(prices: list[Price], at: datetime, version: AdapterVersion | None, base: str) -> int:
    """The price of a prompt token: its adapter's, or else its base model's. `prices` are ordered
    from the latest."""
    begun = [price for price in prices if price.starts_at <= at]
    adapter = version.adapter_id if version else None
    own = (one for one in begun if adapter is not None and one.adapter_id == adapter)
    of_base = (one for one in begun if one.base_model is not None and one.base_model.name == base)
    price = next(own, None) or next(of_base, None)
    return price.prompt if price else 0


def test_the_same_seed_makes_the_same() -> None:
    def told(seed: int) -> list[Any]:
        with transaction.atomic():
            size = Size(
                tenants=5, adapters=50, events=200, audit_entries=10, until=UNTIL, seed=seed
            )
            tenants = Rows(size).make()
            usage.make(size, [tenant.pk for tenant in tenants], BASES, lambda *_: None)
            rows = [
                *Tenant.objects.values_list("name", "weight").order_by("pk"),
                *ApiKey.objects.values_list("name", "prefix", "revoked_at").order_by("pk"),
                *AdapterVersion.objects.order_by("pk").values_list("number", "state", "report"),
                *UsageEvent.objects.values_list("started_at", "model", "cost").order_by("pk"),
            ]
            transaction.set_rollback(True)
        return rows

    assert told(1) == told(1) != told(2)


def test_the_command_fills_what_is_empty_and_nothing_else() -> None:
    make_tenant("mine")
    sizes = {"tenants": 3, "adapters": 20, "events": 100, "audit_entries": 10}
    with pytest.raises(CommandError, match="--into-existing"):
        call_command("make_crowd", **sizes)
    assert Tenant.objects.count() == 1
