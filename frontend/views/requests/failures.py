"""Why requests failed, or were refused, in a period."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Sum

from frontend.periods import Period
from frontend.views.requests.request import limit_words
from tenants.models import Tenant, TotalHour, TotalMinute
from tenants.models.usage.listed import Outcome

WRONG = (Outcome.FAILED.value, Outcome.REFUSED.value)
MOST = 10
"""Maximum number of reasons listed."""


@dataclass(frozen=True, slots=True)
class EndedRequests:
    """The number of requests that ended in a period, however they did, and the reasons of those
    that failed or were refused, most frequent first: outcome, code, the limit if one refused the
    requests, and count."""

    requests: int
    reasons: list[dict[str, Any]]

    @classmethod
    def of(cls, tenant: Tenant | None, start: datetime, end: datetime) -> EndedRequests:
        """Those of a tenant, or of all, in whole hours."""
        since = start.replace(minute=0, second=0, microsecond=0)
        return cls._counted(TotalHour.objects.filter(tenant=tenant).between(since, end))

    @classmethod
    def lately(cls, tenant: Tenant | None, period: Period, now: datetime) -> EndedRequests:
        """Those of a tenant, or of all, in the period until now."""
        totals: Any = TotalMinute if period.minutely else TotalHour
        figures = totals.objects.filter(tenant=tenant)
        return cls._counted(figures.between(period.start(now), period.end(now)))

    @classmethod
    def _counted(cls, figures: Any) -> EndedRequests:
        groups = figures.order_by().values("outcome", "code", "limit_kind", "limit_scope")
        counted = list(groups.annotate(count=Sum("requests")).order_by("-count", "code"))
        return cls(
            sum(row["count"] for row in counted),
            [
                {**row, "limit": limit_words(row["limit_kind"], row["limit_scope"])}
                for row in counted
                if row["outcome"] in WRONG
            ],
        )


def failures(tenant: Tenant | None, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """The most frequent reasons."""
    return EndedRequests.of(tenant, start, end).reasons[:MOST]
