"""Sums of whole tenants, few enough to be added up for pages of all tenants."""

from __future__ import annotations

from django.db import models

from tenants.models.usage.sums import SumSpan, SumsQuerySet, TenantFigures


class UsageTotals(TenantFigures):
    """Sums of a tenant on a base model, over all keys and adapters."""

    span = models.CharField(max_length=5, choices=SumSpan.choices)
    start = models.DateTimeField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.span} of {self.start:%Y-%m-%d %H}h"


class UsageTotal(UsageTotals):
    """The sums of one day or month of UTC: the total of its hours. Triggers on those write it."""

    class Meta:
        ordering = ["span", "start"]
        constraints = [
            models.UniqueConstraint(
                fields=["span", "start", "tenant", "base_model"], name="total_unique"
            )
        ]


class TenantSumQuerySet(SumsQuerySet["TenantSum"]):
    lengths = (SumSpan.MONTH, SumSpan.DAY, SumSpan.HOUR)


class TenantSum(UsageTotals):
    """Totals and hours in one view, distinguished by `span`. Read it by `sums` only, which counts
    each hour once. Its groups are those of `UsageSum` except keys, members, adapters and models."""

    objects = TenantSumQuerySet.as_manager()

    class Meta:
        managed = False
        ordering = ["tenant", "start"]
