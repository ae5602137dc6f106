"""The ledger: what each request cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db import models
from django.db.models import Case, Count, F, Func, Q, Sum, Value, When
from django.db.models.functions import TruncDay, TruncHour

from tenants.models.accounts import Tenant
from tenants.models.adapters import AdapterVersion
from tenants.models.keys import ApiKey

ADAPTER = Case(
    # The name, not the version's row: a bill keeps its lines when an adapter is deleted.
    When(
        ~Q(model=F("base_model")),
        then=Func(F("model"), Value("@"), Value(1), function="split_part"),
    ),
    default=None,
    output_field=models.CharField(),
)
GROUPS: Mapping[str, tuple[str, ...]] = {
    "day": ("day",),
    "hour": ("hour",),
    "key": ("key_id", "key__name"),
    "adapter": ("adapter",),
    "model": ("model",),
}
"""What usage can be summed by, and the columns of each; days and hours are UTC's."""
COLUMNS = {"day": TruncDay("started_at"), "hour": TruncHour("started_at"), "adapter": ADAPTER}
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


class UsageEventQuerySet(models.QuerySet["UsageEvent"]):
    def sums(self, by: Collection[str]) -> models.QuerySet[UsageEvent, dict[str, Any]]:
        """Requests and tokens per group, in order; `by` has at least one of GROUPS."""
        columns = [column for group in by for column in GROUPS[group]]
        made = {name: COLUMNS[name] for name in columns if name in COLUMNS}
        totals = {name: Sum(name) for name in TOKENS}
        groups: models.QuerySet[UsageEvent, dict[str, Any]]
        groups = self.annotate(**made).order_by().values(*columns)
        groups = groups.annotate(requests=Count("id"), **totals)
        return groups.order_by(*columns)


class UsageEvent(models.Model):
    """One request attempt, as the engine counted it. Written once under an id made by the server.

    Times are in seconds; `finish_reason` as answered, else `cancelled` or an error's code.
    """

    id = models.CharField(primary_key=True, max_length=64)
    started_at = models.DateTimeField()
    # Bills outlive what they are for: a tenant with usage stays, a key or version leaves a gap.
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="usage", db_index=False)
    key = models.ForeignKey(
        ApiKey, models.SET_NULL, null=True, related_name="usage", db_index=False
    )
    version = models.ForeignKey(
        AdapterVersion, models.SET_NULL, null=True, related_name="usage", db_index=False
    )
    model = models.CharField(max_length=255)
    base_model = models.CharField(max_length=255)
    engine_id = models.CharField(max_length=255)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField()
    completion_tokens = models.PositiveIntegerField()
    reasoning_tokens = models.PositiveIntegerField()
    finish_reason = models.CharField(max_length=64)
    queue_s = models.FloatField()
    load_s = models.FloatField()
    ttft_s = models.FloatField(null=True)
    total_s = models.FloatField()

    objects = UsageEventQuerySet.as_manager()

    class Meta:
        ordering = ["-started_at"]
        indexes = [
            models.Index(fields=["tenant", "started_at"], name="usage_by_tenant"),
            models.Index(fields=["key", "started_at"], name="usage_by_key"),
            models.Index(fields=["version", "started_at"], name="usage_by_version"),
        ]

    def __str__(self) -> str:
        return self.id
