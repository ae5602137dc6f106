"""Sums of usage: by the hour, by the month, and both in one view.

`tenants.billing.ledger` writes the hourly sums together with the events. In the same transaction
database triggers update the monthly sums (`sql/usage.sql`) and the sums of tenants by day and month
(`totals`), so that these always equal the total of their hours. Sums are read from `UsageSum`,
which combines hours and months, and from `TenantSum`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self, TypeVar

from django.db import models
from django.db.models import F, Func, Q, Sum, Value
from django.db.models.functions import Coalesce, TruncMonth

from tenants.models.accounts import Tenant
from tenants.models.keys import ApiKey
from tenants.naming import DAY, HOUR, MONTH
from tenants.utc import day_end, day_start, month_end, month_start

TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
FIGURES = ("requests", *TOKENS, "cost")
"""The columns that are summed."""
BUCKETS = {
    "hour": F("start"),
    # Not TruncDay, whose time zone arithmetic takes a seventh of the time of sums by day.
    "day": Func(
        Value(timedelta(days=1)),
        F("start"),
        Value(datetime(2000, 1, 1, tzinfo=UTC)),
        function="date_bin",
        output_field=models.DateTimeField(),
    ),
    "month": TruncMonth("start", tzinfo=UTC),
}
MADE: Mapping[str, Any] = BUCKETS | {
    "member": Coalesce("key__created_by", 0, output_field=models.BigIntegerField()),
    "everything": Value(0),
}
"""Groups that are computed rather than fields of the sums."""
GROUPS = (*BUCKETS, "tenant", "key", "member", "adapter", "model", "base_model")
"""What usage can be grouped by; a member is the user who made the key."""


class TenantFigures(models.Model):
    """The fields of all sums: tenant, base model and FIGURES. Counts and costs as in the events."""

    # A tenant with usage cannot be deleted; its keys and adapters can.
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+", db_index=False)
    base_model = models.CharField(max_length=255)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    cost = models.DecimalField(max_digits=38, decimal_places=0)

    class Meta:
        abstract = True


class UsageGroup(TenantFigures):
    """Sums of one key, adapter and model name."""

    key = models.ForeignKey(
        ApiKey, models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    adapter = models.CharField(max_length=63)
    model = models.CharField(max_length=255)

    class Meta:
        abstract = True


class UsageRollup(UsageGroup):
    """The sums of one hour of UTC."""

    hour = models.DateTimeField()

    class Meta:
        ordering = ["tenant", "hour"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "hour", "key", "adapter", "model", "base_model"],
                name="rollup_unique",
            )
        ]
        # No index on `hour` alone: sums over all tenants would hardly gain, because PostgreSQL
        # skip-scans the one above; and for a month of one tenant the planner would prefer it and
        # read all tenants' hours, which takes ten times as long.

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.hour:%Y-%m-%d %H}h {self.model}"


class UsageMonth(UsageGroup):
    """The sums of one month of UTC: the total of its hours. Triggers on the hours write it.

    There are no daily sums: many small customers use most models in one hour of a day, so there
    would be nearly as many days as hours.
    """

    month = models.DateTimeField()

    class Meta:
        ordering = ["tenant", "month"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "month", "key", "adapter", "model", "base_model"],
                name="month_unique",
            )
        ]
        indexes = [
            # Finds when an adapter was last used without reading all usage of the tenant.
            models.Index(fields=["tenant", "adapter", "month"], name="month_by_adapter")
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.month:%Y-%m} {self.model}"


class SumSpan(models.TextChoices):
    """The length of the period of a sum."""

    HOUR = HOUR
    DAY = DAY
    MONTH = MONTH


S = TypeVar("S", bound=models.Model, covariant=True)


class SumsQuerySet(models.QuerySet[S]):
    """Sums of several spans, from which those that exactly cover a period are chosen."""

    lengths: ClassVar[Sequence[SumSpan]]
    """The spans in the view, the longest first, hours last."""

    def with_groups(self, names: Collection[str]) -> Self:
        """Annotate the groups of `names` that are not fields."""
        return self.annotate(**{name: MADE[name] for name in names if name in MADE})

    def sums(
        self, by: Collection[str], start: datetime, end: datetime
    ) -> models.QuerySet[S, dict[str, Any]]:
        """One dict per group with usage in the hours that begin at `start` or later, and before
        `end`.

        Ordered by group; its columns are those of `by` (some of GROUPS; days and months are UTC's;
        `tenant`, `key` and `member` are row ids, `member` is 0 if no user made the key) and
        FIGURES. With no groups, one dict with the totals.
        """
        columns = [*by] or ["everything"]
        found = self.filter(_within(start, end, self._lengths(by)))
        groups: models.QuerySet[S, dict[str, Any]]
        groups = found.with_groups(columns).order_by().values(*columns)
        groups = groups.annotate(**{name: Sum(name, default=0) for name in FIGURES})
        return groups.order_by(*by)

    def sums_since(self, starts: Sequence[datetime], end: datetime) -> list[dict[str, int]]:
        """For each of `starts`, the FIGURES of all hours from then until `end` (exclusive)."""
        hours = self.filter(_within(min(starts), end, [SumSpan.HOUR]))
        sums = hours.aggregate(
            **{
                f"{name}_{at}": Sum(name, filter=Q(start__gte=start), default=0)
                for at, start in enumerate(starts)
                for name in FIGURES
            }
        )
        return [{name: int(sums[f"{name}_{at}"]) for name in FIGURES} for at in range(len(starts))]

    def _lengths(self, by: Collection[str]) -> Sequence[SumSpan]:
        """The spans that are fine enough for these groups."""
        if "hour" in by:
            return [SumSpan.HOUR]
        return [one for one in self.lengths if "day" not in by or one != SumSpan.MONTH]


class UsageSumQuerySet(SumsQuerySet["UsageSum"]):
    lengths = (SumSpan.MONTH, SumSpan.HOUR)


FLOORS = {SumSpan.DAY: day_start, SumSpan.MONTH: month_start}
CEILINGS = {SumSpan.DAY: day_end, SumSpan.MONTH: month_end}


def _within(start: datetime, end: datetime, lengths: Sequence[SumSpan]) -> Q:
    """Selects the longest sums that lie in the period, and shorter ones for its two ends."""
    longest, *shorter = lengths
    if not shorter:
        return Q(span=longest, start__gte=start, start__lt=end)
    first = CEILINGS[longest](start - timedelta(microseconds=1))
    last = FLOORS[longest](end)
    if first >= last:
        return _within(start, end, shorter)
    found = Q(span=longest, start__gte=first, start__lt=last)
    if start < first:
        found |= _within(start, first, shorter)
    return found | _within(last, end, shorter) if last < end else found


class UsageSum(UsageGroup):
    """Hourly and monthly sums in one view, distinguished by `span`. Read it by `sums` only, which
    counts each hour once.

    For queries that name the span, PostgreSQL's planner excludes the other table.
    """

    span = models.CharField(max_length=5, choices=SumSpan.choices)
    start = models.DateTimeField()
    # Never null, but the key may have been deleted: `null` makes joins outer, which lose no usage.
    key = models.ForeignKey(  # type: ignore[assignment]
        ApiKey, models.DO_NOTHING, null=True, related_name="+", db_index=False, db_constraint=False
    )

    objects = UsageSumQuerySet.as_manager()

    class Meta:
        managed = False
        ordering = ["tenant", "start"]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.span} of {self.start:%Y-%m-%d %H}h {self.model}"
