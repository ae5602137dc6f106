"""The health strip of an overview: six figures, each with its change and a line of its past.

From the request counts of gateways (`tenants.models.usage.outcomes`); bills use the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from frontend.formats import duration, money, number, rate
from inference.gateway.measuring.sums import BUCKETS, percentile_s
from tenants.models import RequestHour, RequestMinute, TotalHour, TotalMinute
from tenants.models.usage.outcomes import EPOCH
from tenants.permissions import Caller
from tenants.utc import DAY, HOUR

WIDTH, HEIGHT = 120, 28
"""Size of a sparkline, in SVG units."""
MARGIN = 2

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Period:
    """How far to look back, and the step of the line."""

    name: str
    title: str
    length: timedelta
    step: timedelta

    @property
    def minutely(self) -> bool:
        """Whether it needs figures per minute; otherwise those per hour are enough."""
        return self.step < HOUR


_ALL = (
    Period("1h", "1 hour", HOUR, timedelta(minutes=2)),
    Period("24h", "24 hours", DAY, HOUR),
    Period("7d", "7 days", 7 * DAY, 6 * HOUR),
    Period("30d", "30 days", 30 * DAY, DAY),
)
PERIODS: Mapping[str, Period] = {one.name: one for one in _ALL}
USUAL = PERIODS["24h"]


@dataclass(frozen=True, slots=True)
class HealthWindow:
    """The period until now, in whole steps, and the one of the same length before it."""

    period: Period
    now: datetime

    @property
    def end(self) -> datetime:
        step = self.period.step
        return EPOCH + ((self.now - EPOCH) // step + 1) * step

    @property
    def start(self) -> datetime:
        return self.end - self.period.length

    @property
    def before(self) -> datetime:
        """When the period before began."""
        return self.start - self.period.length

    @property
    def passed(self) -> float:
        """The share of the period that has passed: its last step is still under way."""
        return (self.now - self.start) / self.period.length

    def steps(self) -> list[datetime]:
        count = self.period.length // self.period.step
        return [self.start + n * self.period.step for n in range(count)]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the strip. `tone` is `ok` or `bad` if its change is; `path` is the SVG path of
    its line."""

    title: str
    value: str
    unit: str
    change: str
    tone: str
    note: str
    path: str
    url: str


class RequestSums:
    """Counts, cost, TTFT and output speed of requests, summed over rows of figures."""

    def __init__(self, rows: Iterable[Row]) -> None:
        found = list(rows)

        def total(name: str) -> Any:
            return sum(row[name] for row in found)

        self.requests: int = total("requests")
        self.wrong: int = total("refused") + total("failed")
        self.cost = int(total("cost"))
        self._buckets = [int(total(f"first_tokens{at}")) for at in range(BUCKETS)]
        self._tokens, self._seconds = int(total("decode_tokens")), float(total("decode_s"))

    @property
    def wrong_share(self) -> float | None:
        return self.wrong / self.requests if self.requests else None

    @property
    def tokens_per_s(self) -> float | None:
        """Output speed of an answer after its first token."""
        return self._tokens / self._seconds if self._seconds else None

    def ttft_s(self, share: float) -> float | None:
        return percentile_s(self._buckets, share)


def chosen(request: HttpRequest) -> Period:
    """The period that the query names; by default the usual one."""
    return PERIODS.get(request.GET.get("period", ""), USUAL)


def of_tenant(caller: Caller, period: Period, now: datetime | None = None) -> dict[str, Any]:
    """Context of the strip: of the whole tenant, or of the caller's own keys."""
    tenant, rows = caller.tenant, RequestMinute if period.minutely else RequestHour
    if caller.sees_all_sums:
        totals = TotalMinute if period.minutely else TotalHour
        found: Any = totals.objects.filter(tenant=tenant)
    else:
        own = tenant.keys.filter(created_by=caller.user)
        found = rows.objects.filter(tenant=tenant, key__in=own)
    requests = f"{reverse('requests', args=[tenant.slug])}?period={period.name}"
    return context_of(found, period, now, requests, reverse("usage", args=[tenant.slug]))


def of_all(period: Period, now: datetime | None = None) -> dict[str, Any]:
    """Context of the strip of all tenants."""
    totals: Any = TotalMinute if period.minutely else TotalHour
    requests = f"{reverse('operate_requests')}?period={period.name}"
    figures = totals.objects.filter(tenant=None)
    return context_of(figures, period, now, requests, reverse("operate_usage"))


def context_of(
    figures: Any, period: Period, now: datetime | None, requests: str, usage: str
) -> dict[str, Any]:
    """Context of the strip. `requests` is the URL of the requests of the period, `usage` that of
    the usage page, whose shortest period is a day."""
    window = HealthWindow(period, now or timezone.now())
    sums: QuerySet[Any, dict[str, Any]] = figures.between(window.before, window.end).figures(
        "start", step=period.step, times=["first_tokens"]
    )
    rows = list(sums)
    usage += f"?period={USUAL.name if period.length < DAY else period.name}"
    return {"period": period, "figures": strip(window, rows, requests, usage)}


def strip(window: HealthWindow, rows: Sequence[Row], requests: str, usage: str) -> list[Figure]:
    """The six figures; `rows` are sums by step, of both periods."""
    by_step = {row["start"]: RequestSums([row]) for row in rows}
    steps = [by_step.get(at) for at in window.steps()]
    now = RequestSums(row for row in rows if row["start"] >= window.start)
    before = RequestSums(row for row in rows if row["start"] < window.start)

    def ttft(share: float) -> Figure:
        value, was = now.ttft_s(share), before.ttft_s(share)
        slower = "" if value is None else f"&{urlencode({'ttft': f'{value:.3g}'})}"
        return Figure(
            f"TTFT p{share * 100:.0f}",
            duration(value),
            "",
            later(value, was),
            tone(value, was, least=0.001),
            "",
            path([one.ttft_s(share) if one else None for one in steps]),
            requests + slower,
        )

    return [
        Figure(
            "Requests",
            number(now.requests),
            "",
            growth(now.requests, before.requests * window.passed),
            "",
            f"vs {window.period.title} before" if before.requests else "",
            path([one.requests if one else 0 for one in steps]),
            requests,
        ),
        Figure(
            "Errors and refusals",
            rate(now.wrong_share),
            "",
            points(now.wrong_share, before.wrong_share),
            tone(now.wrong_share, before.wrong_share, least=0.0005),
            f"{number(now.wrong)} request{'' if now.wrong == 1 else 's'}",
            path([one.wrong_share if one else None for one in steps]),
            f"{requests}&outcome=wrong",
        ),
        ttft(0.5),
        ttft(0.95),
        Figure(
            "Output speed",
            "\u2013" if now.tokens_per_s is None else f"{now.tokens_per_s:.0f}",
            "tok/s",
            growth(now.tokens_per_s, before.tokens_per_s),
            tone(before.tokens_per_s, now.tokens_per_s, least=0.5),
            "per answer",
            path([one.tokens_per_s if one else None for one in steps]),
            requests,
        ),
        Figure(
            "Cost",
            money(now.cost),
            "",
            growth(now.cost, before.cost * window.passed),
            "",
            "",
            path([one.cost if one else 0 for one in steps]),
            usage,
        ),
    ]


def growth(now: float | None, before: float | None) -> str:
    """The change of a figure, in percent."""
    if not before:
        return "" if not now else "no previous usage"
    if now is None:
        return "no usage"
    percent = round((now - before) * 100 / before)
    return _signed(percent, f"{abs(percent):,d}%")


def points(now: float | None, before: float | None) -> str:
    """The change of a share, in percentage points."""
    if now is None or before is None:
        return ""
    change = round((now - before) * 100, 2)
    return _signed(change, f"{abs(change):g} pt")


def later(now: float | None, before: float | None) -> str:
    """The change of a time."""
    if now is None or before is None:
        return ""
    change = round(now - before, 3)
    return _signed(change, duration(abs(change)))


def _signed(change: float, text: str) -> str:
    if not change:
        return "unchanged"
    return f"{'+' if change > 0 else chr(0x2212)}{text}"


def tone(now: float | None, before: float | None, *, least: float) -> str:
    """Whether a figure that should be low has become worse or better, by `least` at least."""
    if now is None or before is None or abs(now - before) < least:
        return ""
    return "bad" if now > before else "ok"


def path(values: Sequence[float | None]) -> str:
    """The SVG path of a line through these values, on a scale from 0, with gaps for None."""
    highest = max((value for value in values if value is not None), default=0) or 1
    across = WIDTH / max(1, len(values) - 1)
    drawn, pen = [], "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        y = HEIGHT - MARGIN - float(value) / float(highest) * (HEIGHT - 2 * MARGIN)
        drawn.append(f"{pen}{place * across:.1f} {y:.1f}")
        pen = "L"
    return "".join(drawn)
