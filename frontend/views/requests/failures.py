"""Why requests failed, or were refused, in a period."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Sum

from frontend.views.requests.request import limit_words
from tenants.models import Tenant, TotalHour
from tenants.models.usage.listed import Outcome

MOST = 10
"""Maximum number of reasons listed."""


def failures(tenant: Tenant | None, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """The reasons in a tenant, or in all, in whole hours, most frequent first: outcome, code, the
    limit if one refused the requests, and count."""
    since = start.replace(minute=0, second=0, microsecond=0)
    wrong = [Outcome.FAILED.value, Outcome.REFUSED.value]
    found = TotalHour.objects.filter(tenant=tenant, outcome__in=wrong).between(since, end)
    reasons = found.order_by().values("outcome", "code", "limit_kind", "limit_scope")
    counted = reasons.annotate(count=Sum("requests")).order_by("-count", "code")[:MOST]
    return [{**row, "limit": limit_words(row["limit_kind"], row["limit_scope"])} for row in counted]
