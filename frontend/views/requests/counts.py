"""How many requests there were in a list's period, from the figures of gateways."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from tenants.listing import Filter, Window
from tenants.models import ApiKey, RequestHour, RequestMinute, Tenant, TotalHour, TotalMinute

MINUTELY = timedelta(hours=2)
"""Periods up to this long are counted by the minute, longer ones by the hour."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    requests: int
    failed: int
    refused: int


def counts(
    filter: Filter, window: Window, tenant: Tenant | None, keys: QuerySet[ApiKey] | None = None
) -> RequestCounts | None:
    """Counts of the window, in whole minutes or hours; only of `keys` if given. None if the figures
    do not distinguish what the filter asks for."""
    by_model_or_key = Filter(model=filter.model, key_id=filter.key_id)
    if filter != by_model_or_key or (filter.narrows and tenant is None):
        return None
    start, end = window
    minutely = (end or timezone.now()) - start <= MINUTELY
    figures: Any
    if filter.narrows or keys is not None:
        figures = RequestMinute if minutely else RequestHour
    else:
        figures = TotalMinute if minutely else TotalHour
    found = figures.objects.filter(tenant=tenant, at__gte=_begun(start, minutely))
    if end is not None:
        found = found.filter(at__lt=end)
    if filter.model:
        name = filter.model
        found = found.filter(Q(adapter=name) | Q(adapter="", base_model=name))
    if filter.key_id is not None:
        found = found.filter(key=filter.key_id)
    if keys is not None:
        found = found.filter(key__in=keys)
    return RequestCounts(
        **found.aggregate(
            failed=Sum("requests", filter=Q(outcome="failed"), default=0),
            refused=Sum("requests", filter=Q(outcome="refused"), default=0),
            requests=Sum("requests", default=0),
        )
    )


def _begun(at: datetime, minutely: bool) -> datetime:
    whole = at.replace(second=0, microsecond=0)
    return whole if minutely else whole.replace(minute=0)
