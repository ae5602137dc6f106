"""Why requests failed, or were refused, in a period."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Sum

from frontend.views.requests.request import limit_words
from tenants.models import Tenant, TotalHour
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
        found = TotalHour.objects.filter(tenant=tenant).between(since, end).order_by()
        groups = found.values("outcome", "code", "limit_kind", "limit_scope")
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
