"""The health strip of an overview: six figures, each with its change and a line of its past.

From the request counts of gateways (`tenants.models.usage.outcomes`); bills use the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from frontend.formats import duration, money, number, rate
from frontend.periods import PERIODS, USUAL, Period
from inference.gateway.measuring.sums import percentile_s, sums_of_buckets
from tenants.models import RequestHour, RequestMinute, TotalHour, TotalMinute
from tenants.models.usage.outcomes import FiguresQuerySet
from tenants.permissions import Caller
from tenants.utc import DAY

WIDTH, HEIGHT = 120, 28
"""Size of a sparkline, in SVG units."""
MARGIN = 2

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HealthWindow:
    """The period until now, and the one of the same length before it."""

    period: Period
    now: datetime

    @property
    def end(self) -> datetime:
        return self.period.end(self.now)

    @property
    def start(self) -> datetime:
        return self.period.start(self.now)

    @property
    def before(self) -> datetime:
        """When the period before began."""
        return self.start - self.period.length

    @property
    def passed(self) -> float:
        """The share of the period that has passed: its last unit is still under way."""
        return (self.now - self.start) / self.period.length

    def steps(self) -> list[datetime]:
        """The beginning of each step that has begun."""
        count = (self.now - self.start) // self.period.step + 1
        return [self.start + n * self.period.step for n in range(count)]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the strip. `tone` is `ok` or `bad` if its change is; `path` is the SVG path of
    its line; `url` is empty if it leads nowhere."""

    title: str
    value: str
    unit: str
    change: str
    tone: str
    note: str
    path: str
    url: str


class RequestSums:
    """Counts, tokens, cost, TTFT and output speed of requests, summed over rows of figures."""

    def __init__(self, rows: Iterable[Row]) -> None:
        found = list(rows)

        def total(name: str) -> Any:
            return sum(row[name] for row in found)

        self.requests: int = total("requests")
        self.refused: int = total("refused")
        self.failed: int = total("failed")
        self.prompt_tokens: int = total("prompt_tokens")
        self.cached_tokens: int = total("cached_tokens")
        self.output_tokens: int = total("output_tokens")
        self.conformed: int = total("conformed")
        self.malformed: int = total("malformed")
        self.unchecked: int = total("unchecked")
        self.cost = int(total("cost"))
        self._buckets = sums_of_buckets(row["first_tokens"] for row in found)
        self._tokens, self._seconds = int(total("decode_tokens")), float(total("decode_s"))

    @property
    def wrong(self) -> int:
        return self.refused + self.failed

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

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
    tenant = caller.tenant
    if caller.sees_all_sums:
        totals = TotalMinute if period.minutely else TotalHour
        found: Any = totals.objects.filter(tenant=tenant)
    else:
        found = rows_of(caller, period)
    requests = ""
    if caller.sees_requests:
        requests = f"{reverse('requests', args=[tenant.slug])}?period={period.name}"
    return context_of(found, period, now, requests, reverse("usage", args=[tenant.slug]))


def rows_of(caller: Caller, period: Period) -> FiguresQuerySet[Any]:
    """Figures by key and adapter, for this period: of the whole tenant, or of the caller's own
    keys."""
    rows: Any = RequestMinute if period.minutely else RequestHour
    found: FiguresQuerySet[Any] = rows.objects.filter(tenant=caller.tenant)
    if caller.sees_all_sums:
        return found
    return found.filter(key__in=caller.tenant.keys.filter(created_by=caller.user))


def of_all(period: Period, now: datetime | None = None) -> dict[str, Any]:
    """Context of the strip of all tenants."""
    totals: Any = TotalMinute if period.minutely else TotalHour
    requests = f"{reverse('operate_requests')}?period={period.name}"
    figures = totals.objects.filter(tenant=None)
    return context_of(figures, period, now, requests, reverse("operate_usage"))


def context_of(
    figures: Any, period: Period, now: datetime | None, requests: str, usage: str
) -> dict[str, Any]:
    """Context of the strip. `requests` is the URL of the requests of the period, empty if the
    caller may see sums only; `usage` that of the usage page, whose shortest period is a day."""
    window = HealthWindow(period, now or timezone.now())
    sums: QuerySet[Any, dict[str, Any]] = figures.between(window.before, window.end).figures(
        "start", step=period.step, times=["first_tokens"]
    )
    compared = ComparedSums.of(window, list(sums))
    usage += f"?period={USUAL.name if period.length < DAY else period.name}"
    return {
        "period": period,
        "compared": compared,
        "sums": compared.now,
        "wrong_url": requests and _wrong_url(requests),
        "figures": strip(compared, requests, usage),
    }


@dataclass(frozen=True, slots=True)
class ComparedSums:
    """The sums of a period, of the one before it, and of each step of the period (None without
    requests)."""

    window: HealthWindow
    now: RequestSums
    before: RequestSums
    steps: Sequence[RequestSums | None]

    @classmethod
    def of(cls, window: HealthWindow, rows: Sequence[Row]) -> ComparedSums:
        """`rows` are sums by step, of both periods."""
        by_step = {row["start"]: RequestSums([row]) for row in rows}
        return cls(
            window,
            RequestSums(row for row in rows if row["start"] >= window.start),
            RequestSums(row for row in rows if row["start"] < window.start),
            [by_step.get(at) for at in window.steps()],
        )

    def line(self, value: Callable[[RequestSums], float | None], empty: float | None = None) -> str:
        """The SVG path of this figure over the steps, `empty` in those without requests."""
        return path([value(one) if one else empty for one in self.steps])


def strip(sums: ComparedSums, requests: str, usage: str) -> list[Figure]:
    """The six figures."""
    return [
        _requests(sums, requests),
        _wrong(sums, requests),
        _ttft(sums, 0.5, requests),
        _ttft(sums, 0.95, requests),
        _speed(sums, requests),
        _cost(sums, usage),
    ]


def _requests(sums: ComparedSums, url: str) -> Figure:
    count, before, window = sums.now.requests, sums.before.requests, sums.window
    change = growth(count, before * window.passed)
    note = f"vs {window.period.title} before" if before else ""
    line = sums.line(lambda one: one.requests, 0)
    return Figure("Requests", number(count), "", change, "", note, line, url)


def _wrong(sums: ComparedSums, url: str) -> Figure:
    share, before = sums.now.wrong_share, sums.before.wrong_share
    return Figure(
        "Errors and refusals",
        rate(share),
        "",
        points(share, before),
        tone(share, before, least=0.0005),
        f"{number(sums.now.refused)} refused, {number(sums.now.failed)} failed",
        sums.line(lambda one: one.wrong_share),
        url and _wrong_url(url),
    )


def _wrong_url(requests: str) -> str:
    return f"{requests}&outcome=wrong"


def _ttft(sums: ComparedSums, share: float, url: str) -> Figure:
    value, before = sums.now.ttft_s(share), sums.before.ttft_s(share)
    slower = "" if value is None else f"&{urlencode({'ttft': f'{value:.3g}'})}"
    return Figure(
        f"TTFT p{share * 100:.0f}",
        duration(value),
        "",
        later(value, before),
        tone(value, before, least=0.001),
        "",
        sums.line(lambda one: one.ttft_s(share)),
        url and url + slower,
    )


def _speed(sums: ComparedSums, url: str) -> Figure:
    speed, before = sums.now.tokens_per_s, sums.before.tokens_per_s
    text, better = "\u2013" if speed is None else f"{speed:.0f}", tone(before, speed, least=0.5)
    line = sums.line(lambda one: one.tokens_per_s)
    change = growth(speed, before)
    return Figure("Output speed", text, "tok/s", change, better, "per answer", line, url)


def _cost(sums: ComparedSums, url: str) -> Figure:
    change = growth(sums.now.cost, sums.before.cost * sums.window.passed)
    return Figure(
        "Cost", money(sums.now.cost), "", change, "", "", sums.line(lambda one: one.cost, 0), url
    )


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
