"""Sums of months equal those of their hours, and sums of a period equal those of its events,
however it is split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Sum
from django.db.models.functions import TruncMonth

from inference.link.accounts import Usage
from tenants.models import (
    ApiKey,
    Tenant,
    TenantSum,
    UsageEvent,
    UsageMonth,
    UsageRollup,
    UsageSum,
)
from tenants.models.usage.sums import FIGURES, SumSpan
from tenants.utc import month_end, month_start
from tests.tenants.making import make_key, make_tenant, make_user
from tests.tenants.spending import NOON, spend

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FEBRUARY, APRIL = datetime(2028, 2, 1, tzinfo=UTC), datetime(2028, 4, 1, tzinfo=UTC)
GROUP = ("tenant", "key", "adapter", "model", "base_model")


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return make_key(tenant)[0]


def months() -> list[dict[str, Any]]:
    return list(UsageMonth.objects.order_by("month", *GROUP).values("month", *GROUP, *FIGURES))


def months_of_hours() -> list[dict[str, Any]]:
    """The months as they should be, computed from the hours."""
    groups = UsageRollup.objects.annotate(month=TruncMonth("hour", tzinfo=UTC)).order_by()
    sums = groups.values("month", *GROUP).annotate(**{name: Sum(name) for name in FIGURES})
    return list(sums.order_by("month", *GROUP))


def usage_of(random: Random) -> Usage:
    prompt = random.randrange(1, 1000)
    counts = prompt, random.randrange(prompt), random.randrange(500), random.randrange(9)
    return Usage(*counts, 0.1, 0.0, 0.2, 0.9)


def moment(random: Random) -> datetime:
    """A random moment within three months, often on the edge of an hour, a day or a month."""
    edge = random.choice([FEBRUARY, month_end(FEBRUARY), APRIL, FEBRUARY + 28 * DAY, NOON])
    near = timedelta(microseconds=random.choice([-1, 0, 1]))
    return edge + near if random.random() < 0.4 else FEBRUARY + random.random() * 60 * DAY


# --- Months are the sums of their hours ----------------------------------------------------------


def test_months_follow_hours_that_are_changed_by_hand(key: ApiKey) -> None:
    for number in range(6):
        spend(key, NOON + number * 10 * DAY, adapter=f"a{number % 2}", model="m")
    UsageRollup.objects.filter(adapter="a0").update(cost=7, requests=3)
    UsageRollup.objects.filter(hour=NOON).update(hour=FEBRUARY, model="other")
    assert months() == months_of_hours()
    UsageRollup.objects.filter(adapter="a1").delete()
    assert [row for row in months() if row["requests"]] == months_of_hours()


def test_rolled_back_usage_is_in_no_month(key: ApiKey) -> None:
    spend(key)
    before = months()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        spend(key)
        raise ZeroDivisionError
    assert months() == before


# --- A period's sums are those of its events -----------------------------------------------------


def summed(events: Sequence[UsageEvent], by: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows that `UsageSum.objects.sums` should return: groups, then figures."""
    floors = {
        "hour": lambda at: at.replace(minute=0, second=0, microsecond=0),
        "day": lambda at: at.replace(hour=0, minute=0, second=0, microsecond=0),
        "month": month_start,
    }
    sums: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * len(FIGURES))
    for event in events:
        group = [
            floors[name](event.started_at) if name in floors else getattr(event, name)
            for name in by
        ]
        figures = [1, *(getattr(event, name) for name in FIGURES[1:])]
        row = sums[tuple(group)]
        row[:] = [a + b for a, b in zip(row, figures, strict=True)]
    return sorted((*group, *row) for group, row in sums.items())


@pytest.mark.parametrize("by", [["month"], ["adapter"], ["month", "adapter"], ["day"], ["hour"]])
def test_any_period_is_exact(key: ApiKey, by: list[str]) -> None:
    random = Random(str(by))
    events = [
        spend(key, moment(random), usage_of(random), adapter=random.choice(["", "a"]))
        for _ in range(80)
    ]
    starts = [FEBRUARY - DAY, FEBRUARY, FEBRUARY + HOUR, FEBRUARY + 20 * DAY, APRIL - HOUR, APRIL]
    for start in starts:
        for end in (start + HOUR, start + 10 * DAY, month_end(start), APRIL, APRIL + 13 * HOUR):
            rows = UsageSum.objects.sums(by, start, end)
            found = [tuple(row[name] for name in (*by, *FIGURES)) for row in rows]
            inside = [event for event in events if start <= event.started_at < end]
            assert found == summed(inside, by), (start, end)


@pytest.mark.parametrize("by", [[], ["tenant"], ["day", "base_model"], ["month"], ["hour"]])
def test_any_period_of_all_tenants_is_exact(tenant: Tenant, key: ApiKey, by: list[str]) -> None:
    random = Random(str(by))
    keys = [key, make_key(make_tenant("other"))[0]]
    events = [
        spend(random.choice(keys), moment(random), usage_of(random), adapter=random.choice("ab"))
        for _ in range(80)
    ]
    UsageRollup.objects.filter(tenant=tenant, adapter="b").delete()
    left = [one for one in events if one.tenant != tenant or one.adapter == "a"]
    for start in (FEBRUARY, FEBRUARY + HOUR, FEBRUARY + 20 * DAY - HOUR, APRIL - HOUR):
        for end in (start + HOUR, start + 10 * DAY, month_end(start), APRIL, APRIL + 40 * HOUR):
            rows = TenantSum.objects.sums(by, start, end)
            found = [
                tuple(row[name] for name in (*by, *FIGURES)) for row in rows if row["requests"]
            ]
            inside = [event for event in left if start <= event.started_at < end]
            grouped = summed(inside, ["tenant_id" if name == "tenant" else name for name in by])
            assert found == grouped, (start, end)


@pytest.mark.parametrize("deleted", [False, True])
def test_usage_of_keys_without_a_member_is_summed(
    tenant: Tenant, key: ApiKey, deleted: bool
) -> None:
    member = make_user()
    theirs, _ = make_key(tenant, created_by=member)
    for one in (key, theirs, theirs):
        spend(one, NOON)
    if deleted:
        ApiKey.objects.filter(pk__in=[key.pk, theirs.pk]).delete()
    usage = UsageSum.objects.filter(tenant=tenant)
    for by in (["member"], ["day", "member"]):
        found = {row["member"]: row["requests"] for row in usage.sums(by, NOON, NOON + HOUR)}
        assert found == ({0: 3} if deleted else {0: 1, member.pk: 2})


def test_whole_months_are_read_as_one_sum_each(key: ApiKey) -> None:
    """The months' rows are given wrong figures, which show where they were read."""
    for day in (1, 40, 80):
        spend(key, FEBRUARY - 10 * DAY + day * DAY)
    UsageMonth.objects.update(requests=1000)
    usage = UsageSum.objects.filter(tenant=key.tenant)

    def requests(by: Sequence[str], start: datetime, end: datetime) -> list[int]:
        return [row["requests"] for row in usage.sums(by, start, end)]

    assert requests([], FEBRUARY - 10 * DAY, APRIL + 20 * DAY) == [1 + 1000 + 1]
    assert requests(["key"], FEBRUARY, month_end(FEBRUARY)) == []
    assert requests(["month"], FEBRUARY, APRIL) == [1000]
    assert requests(["month", "day"], FEBRUARY, APRIL) == [1]
    assert UsageSum.objects.filter(span=SumSpan.MONTH).count() == 3
    assert len(set(UsageSum.objects.values_list("pk", flat=True))) == 6


@pytest.mark.parametrize(
    ("at", "start", "end"),
    [
        (FEBRUARY, FEBRUARY, datetime(2028, 3, 1, tzinfo=UTC)),
        (FEBRUARY + 29 * DAY - HOUR, FEBRUARY, datetime(2028, 3, 1, tzinfo=UTC)),
        (datetime(2027, 12, 31, 23, 59, tzinfo=UTC), datetime(2027, 12, 1, tzinfo=UTC),
         datetime(2028, 1, 1, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_months(at: datetime, start: datetime, end: datetime) -> None:
    assert (month_start(at), month_end(at)) == (start, end)
