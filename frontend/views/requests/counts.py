"""How many requests there were in a list's period, and when, from the figures of gateways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants.listing import WRONG, Filter, Window
from tenants.models import ApiKey, RequestHour, RequestMinute, Tenant, TotalHour, TotalMinute
from tenants.models.usage.listed import Outcome
from tenants.models.usage.outcomes import EPOCH
from tenants.utc import DAY, HOUR

MINUTELY = timedelta(hours=2)
"""Periods up to this long are counted by the minute, longer ones by the hour."""
STEPS = (timedelta(minutes=2), HOUR, 6 * HOUR, DAY, 7 * DAY)
MOST_BARS = 62
WIDTH, GAP, HEIGHT = 10, 2, 48
"""Of a bar, in SVG units: the space for it and its gap, and the greatest height."""
MINUTE = "%Y-%m-%dT%H:%M"
FIGURED: dict[str, Q] = {
    "": Q(),
    WRONG: Q(outcome__in=("failed", "refused")),
    Outcome.FAILED: Q(outcome="failed"),
    Outcome.REFUSED: Q(outcome="refused"),
    Outcome.CANCELLED: Q(outcome="cancelled"),
}
"""The outcomes of the list that figures distinguish."""


@dataclass(frozen=True, slots=True)
class RequestBar:
    """The requests of one step of the period."""

    start: datetime
    end: datetime
    requests: int
    failed: int
    refused: int
    x: int
    unit: float
    """Height of one request."""

    @property
    def during(self) -> str:
        """The query of its time."""
        return urlencode({"since": f"{self.start:{MINUTE}}", "until": f"{self.end:{MINUTE}}"})

    @property
    def good(self) -> int:
        return self.requests - self.failed - self.refused

    @property
    def parts(self) -> list[tuple[str, str, str]]:
        """CSS class, top and height of each part, from the ground."""
        found, ground = [], float(HEIGHT)
        for name, count in (("good", self.good), ("warn", self.refused), ("bad", self.failed)):
            height = count * self.unit
            ground -= height
            if count:
                found.append((name, f"{ground:.1f}", f"{height:.1f}"))
        return found


@dataclass(frozen=True, slots=True)
class RequestCounts:
    requests: int
    failed: int
    refused: int
    bars: Sequence[RequestBar]

    @property
    def width(self) -> int:
        return len(self.bars) * WIDTH


def counts(
    filter: Filter, window: Window, tenant: Tenant | None, keys: QuerySet[ApiKey] | None = None
) -> RequestCounts | None:
    """Counts of the window, in whole minutes or hours; only of `keys` if given. None if the figures
    do not distinguish what the filter asks for."""
    figured = Filter(filter.model, filter.key_id, filter.outcome, filter.member_id)
    if filter != figured or filter.outcome not in FIGURED:
        return None
    by_key = filter != Filter(outcome=filter.outcome) or keys is not None
    if by_key and tenant is None:
        return None
    start, end = window[0], window[1] or timezone.now()
    minutely = end - start <= MINUTELY
    figures: Any
    if by_key:
        figures = RequestMinute if minutely else RequestHour
    else:
        figures = TotalMinute if minutely else TotalHour
    begun = _begun(start, minutely)
    found = figures.objects.filter(FIGURED[filter.outcome], tenant=tenant).between(begun, end)
    if filter.model:
        name = filter.model
        found = found.filter(Q(adapter=name) | Q(adapter="", base_model=name))
    if filter.key_id is not None:
        found = found.filter(key=filter.key_id)
    if filter.member_id is not None:
        found = found.filter(key__created_by=filter.member_id)
    if keys is not None:
        found = found.filter(key__in=keys)
    fitting = [one for one in STEPS[not minutely :] if (end - begun) / one <= MOST_BARS]
    step = fitting[0] if fitting else STEPS[-1]
    rows = {row["start"]: row for row in found.figures("start", step=step, times=[])}
    return RequestCounts(
        sum(row["requests"] for row in rows.values()),
        sum(row["failed"] for row in rows.values()),
        sum(row["refused"] for row in rows.values()),
        _bars(rows, begun, end, step) if fitting else (),
    )


def _bars(
    rows: Mapping[datetime, Any], start: datetime, end: datetime, step: timedelta
) -> list[RequestBar]:
    """One for each step, those without requests included."""
    unit = HEIGHT / max((row["requests"] for row in rows.values()), default=1)
    bars: list[RequestBar] = []
    at = EPOCH + (start - EPOCH) // step * step
    while at < end:
        row = rows.get(at) or dict.fromkeys(("requests", "failed", "refused"), 0)
        figures = (row["requests"], row["failed"], row["refused"])
        bars.append(RequestBar(at, at + step, *figures, x=len(bars) * WIDTH, unit=unit))
        at += step
    return bars


def _begun(at: datetime, minutely: bool) -> datetime:
    whole = at.replace(second=0, microsecond=0)
    return whole if minutely else whole.replace(minute=0)
