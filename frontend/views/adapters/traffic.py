"""Requests, failures, costs and TTFT of adapters and versions, from the figures of gateways."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import (
    Aggregate,
    BigIntegerField,
    F,
    Func,
    JSONField,
    Max,
    Q,
    Sum,
    TextField,
    Value,
)
from django.db.models.functions import Cast, Coalesce, Extract, TruncDay
from django.utils import timezone

from frontend.formats import ago, month, rate
from frontend.views.limits import last_day
from frontend.views.overview.health import path
from inference.gateway.measuring.sums import BUCKETS, percentile_s, sums_of_buckets
from tenants.models import AdapterVersion, RequestHour, Tenant, UsageMonth
from tenants.models.usage.outcomes import STRUCTURES, BucketSums
from tenants.utc import month_start

LOOKBACK = timedelta(days=7)
"""The period over which versions are compared."""


@dataclass(frozen=True, slots=True)
class StructureDay:
    """The answers of a day, or of several without `at`, that should have a structure."""

    conformed: int = 0
    malformed: int = 0
    unchecked: int = 0
    at: datetime | None = None
    """The day's beginning."""

    @property
    def checked(self) -> int:
        return self.conformed + self.malformed

    @property
    def conforming(self) -> str:
        """The share of the checked ones that have it."""
        return rate(share_of(self.conformed, self.checked))


@dataclass(slots=True)
class AdapterTraffic:
    """Figures of a period; costs in pico-units, times in seconds."""

    requests: int = 0
    failed: int = 0
    cost: int = 0
    structures: list[StructureDay] = field(default_factory=list)
    """Of each day with answers that should have a structure."""
    first_tokens: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    by_hour: dict[int, int] = field(default_factory=dict)
    """Requests of each hour in which there were any, by its start in seconds since 1970."""
    before: datetime | None = None
    """The last month in which it was used, if any."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row of `_sums`."""
        self.requests += row["requests"]
        self.failed += row["failed"]
        self.cost += int(row["cost"])
        if any(row[name] for name in STRUCTURES):
            found = {name: row[name] for name in STRUCTURES}
            self.structures.append(StructureDay(**found, at=row.get("day")))
        self.first_tokens = sums_of_buckets([self.first_tokens, row["first_tokens"]])
        for hour, requests in zip(row.get("hours", ()), row.get("of_hours", ()), strict=True):
            self.by_hour[hour] = self.by_hour.get(hour, 0) + requests

    @property
    def p50_s(self) -> float | None:
        return percentile_s(self.first_tokens, 0.5)

    @property
    def p95_s(self) -> float | None:
        return percentile_s(self.first_tokens, 0.95)

    @property
    def failed_share(self) -> float | None:
        return share_of(self.failed, self.requests)

    @property
    def errors(self) -> str:
        return rate(self.failed_share)

    @property
    def structure(self) -> StructureDay:
        """Of all days together."""
        days = self.structures
        return StructureDay(
            **{name: sum(getattr(one, name) for one in days) for name in STRUCTURES}
        )

    @property
    def malformed_share(self) -> float | None:
        return share_of(self.structure.malformed, self.structure.checked)

    @property
    def line(self) -> str:
        """The path of its sparkline."""
        return path([self.by_hour.get(_seconds(hour), 0) for hour in reversed(last_day())])

    @property
    def last_used(self) -> str:
        """When it was last used, in words, as far as that is known."""
        if self.by_hour:
            latest, now = max(self.by_hour), last_day()[0]
            ended = datetime.fromtimestamp(latest, UTC) + timedelta(hours=1)
            return "this hour" if latest == _seconds(now) else ago(ended)
        if self.before is None:
            return "never"
        if self.before == month_start(timezone.now()):
            return "earlier this month"
        return f"in {month(self.before)}"


def of_adapters(tenant: Tenant, names: Collection[str]) -> Mapping[str, AdapterTraffic]:
    """Traffic of the last 24 hours, by the adapter's name."""
    found = {name: AdapterTraffic() for name in names}
    hours = RequestHour.objects.filter(tenant=tenant, at__in=last_day(), adapter__in=names)
    at = Cast(Extract("at", "epoch"), BigIntegerField())
    for row in _sums(hours, "adapter", hours=ArrayAgg(at), of_hours=ArrayAgg("requests")):
        found[row["adapter"]].add(row)
    idle = [name for name, one in found.items() if not one.by_hour]
    months = UsageMonth.objects.filter(tenant=tenant, adapter__in=idle).order_by()
    for row in months.values("adapter").annotate(last=Max("month")) if idle else ():
        found[row["adapter"]].before = row["last"]
    return found


def of_versions(tenant: Tenant, versions: Iterable[AdapterVersion]) -> Mapping[int, AdapterTraffic]:
    """Traffic over LOOKBACK, by the version's row id, with its days in order."""
    found = {version.pk: AdapterTraffic() for version in versions}
    since = last_day()[0] - LOOKBACK
    hours = RequestHour.objects.filter(tenant=tenant, at__gte=since, version__in=list(found))
    by_day = hours.annotate(day=TruncDay("at", tzinfo=UTC))
    for row in _sums(by_day, "version", "day"):
        found[row["version"]].add(row)
    return found


def requests_of_day(tenant: Tenant) -> Coalesce:
    """An expression for the tenant's adapters: the requests of the last 24 hours.

    The sums are read first and are looked up in a JSON object: figures are not indexed by adapter,
    so a subquery would read all of the day's for each adapter.
    """
    hours = RequestHour.objects.filter(tenant=tenant, at__in=last_day()).exclude(adapter="")
    sums = dict(hours.order_by().values_list("adapter").annotate(Sum("requests")))
    found = Func(
        Value(sums, output_field=JSONField()),
        F("name"),
        function="jsonb_extract_path_text",
        output_field=TextField(),
    )
    return Coalesce(Cast(found, BigIntegerField()), 0)


def share_of(part: int, whole: int) -> float | None:
    """The share from 0 to 1; None if there is no whole."""
    return part / whole if whole else None


def _seconds(at: datetime) -> int:
    """Seconds since 1970."""
    return int(at.timestamp())


def _sums(figures: Any, *by: str, **more: Aggregate) -> Iterable[Mapping[str, Any]]:
    sums: dict[str, Any] = {"first_tokens": BucketSums("first_tokens")}
    sums["failed"] = Sum("requests", filter=Q(outcome="failed"), default=0)
    sums |= (
        {name: Sum(name, default=0) for name in (*STRUCTURES, "cost")}
        | more
        | {"requests": Sum("requests", default=0)}
    )
    found: Iterable[Mapping[str, Any]] = figures.order_by(*by).values(*by).annotate(**sums)
    return found
