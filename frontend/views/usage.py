"""A tenant's usage and cost: figures, a chart and a table, from the ledger's sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import F, QuerySet
from django.db.models.expressions import CombinedExpression
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from frontend.formats import aligned_money, money, number, percent
from frontend.pages import tenant_page
from frontend.periods import PERIODS, pace_of_month
from frontend.times import Day, midnight
from frontend.views.requests.failures import failures
from inference.interfaces.directory import MICRO, PICO
from tenants.limits import ceilings
from tenants.models import LimitScope, Tenant, User
from tenants.models.usage.sums import FIGURES, SumsQuerySet
from tenants.permissions import Caller, Permission
from tenants.utc import DAY, HOUR, month_end, month_start

LOOKBACKS = {name: PERIODS[name] for name in ("24h", "7d", "30d")}
CHOICES = {
    **{name: period.title for name, period in LOOKBACKS.items()},
    "month": "This month",
    "custom": "Custom",
}
BY = {"adapter": "adapter", "key": "API key", "model": "model", "member": "member"}
SHOW = {"cost": "Cost", "tokens": "Tokens"}
STEPS = {"hour": HOUR, "day": DAY}
HOURLY, DAILY = 2 * DAY, 62 * DAY
"""Longest periods shown by hour and by day; longer ones are shown by month."""
MAX_DAYS = 366
MAX_SERIES = 5
"""Maximum number of series in the chart; the rest is summed up as one more."""
MAX_ROWS = 50
"""Maximum number of rows in the table; the CSV has all."""
MONTHLY = "cost_per_month"
"""The limit that is the monthly budget."""
BASE = "base models"
"""Label for usage without an adapter."""
NOBODY = "no member"
"""Label for keys created by the installation itself or by the API, and for deleted accounts."""
OTHER = "Other"
LOOKS = (
    ("c1", "none"),
    ("c2", "6 2"),
    ("c3", "2 2"),
    ("c4", "8 2 2 2"),
    ("c5", "4 4"),
    ("c0", "1 3"),
)
"""Colour class and dash pattern of each series; the last is for all others."""

Row = Mapping[str, Any]
Used = SumsQuerySet[Any]
UsageSums = QuerySet[Any, dict[str, Any]]


class UsageForm(forms.Form):
    """Query of the page. Days are in UTC; the period includes the first and the last."""

    period = forms.ChoiceField(required=False, choices=list(CHOICES.items()))
    first = Day(required=False, label="From")
    last = Day(required=False, label="To")
    by = forms.ChoiceField(required=False, label="Stacked by")
    show = forms.ChoiceField(required=False, choices=list(SHOW.items()))

    def __init__(self, data: Any, by: Mapping[str, str]) -> None:
        super().__init__(data)
        self.groups = by
        self.fields["by"].choices = list(by.items())  # type: ignore[attr-defined]

    def question(self, now: datetime) -> UsageQuestion:
        """The question that the form asks; the default one if it is invalid."""
        usual = next(iter(self.groups))
        return UsageQuestion.of(self.cleaned_data if self.is_valid() else {}, now, usual)

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = self.cleaned_data
        if given.get("period") == "custom" and not self.errors:
            _check_days(given["first"], given["last"])
        return given


def _check_days(first: date | None, last: date | None) -> None:
    today = timezone.now().date()
    first, last = first or today, last or today
    if first > last:
        raise ValidationError({"last": f"{last} is before {first}."})
    if first > today:
        raise ValidationError({"first": f"{first} is in the future."})
    if (days := (last - first).days + 1) > MAX_DAYS:
        raise ValidationError(
            {"first": f"{first} to {last} is {days} days. The maximum is {MAX_DAYS} days."}
        )


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    """The hours from `start` to before `end`, grouped by a column, as tokens or as cost.

    `until` is the end of the range to read. It may lie after `end` if that is in the future, since
    whole months are faster to read than their hours.
    """

    period: str
    start: datetime
    end: datetime
    until: datetime
    by: str
    show: str

    @classmethod
    def of(cls, given: Mapping[str, Any], now: datetime, usual: str = "adapter") -> UsageQuestion:
        """The period and grouping that are given; by default by the `usual` group."""
        period = given.get("period") or "7d"
        start, end = _bounds(period, given, now)
        until = month_end(now) if end > now else end
        by, show = given.get("by") or usual, given.get("show") or "cost"
        return cls(period, start, end, until, by, show)

    @property
    def bucket(self) -> str:
        length = self.end - self.start
        return "hour" if length <= HOURLY else "day" if length <= DAILY else "month"

    @property
    def before(self) -> tuple[datetime, datetime]:
        """The preceding period of the same length."""
        return self.start - (self.end - self.start), self.start

    def buckets(self) -> Iterator[datetime]:
        """Start of each bucket; the first month may start before the period."""
        at = month_start(self.start) if self.bucket == "month" else self.start
        while at < self.end:
            yield at
            at = month_end(at) if self.bucket == "month" else at + STEPS[self.bucket]

    def sums(self, usage: Used, *by: str) -> UsageSums:
        """Usage in the period, by group."""
        return usage.sums(by, self.start, self.until)

    @property
    def shown(self) -> F | CombinedExpression:
        """The expression shown in the chart: tokens, or cost in pico-units."""
        return F("cost") if self.show == "cost" else F("prompt_tokens") + F("completion_tokens")

    def value(self, row: Row) -> int:
        """The same value of a row of sums."""
        if self.show == "cost":
            return int(row["cost"])
        return int(row["prompt_tokens"] + row["completion_tokens"])

    def text(self, value: int) -> str:
        return money(value) if self.show == "cost" else number(value)

    def query(self, **changed: str) -> str:
        """The query string of this view with some values changed."""
        parts = {"period": self.period, "by": self.by, "show": self.show} | changed
        if parts["period"] == "custom":
            days = {"first": self.start.date(), "last": (self.end - HOUR).date()}
            parts |= {name: day.isoformat() for name, day in days.items()}
        return urlencode(parts)


def _bounds(period: str, given: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    """Start and end of a period, in whole hours; the current hour is included."""
    end = now.replace(minute=0, second=0, microsecond=0) + HOUR
    if period == "month":
        return month_start(now), end
    if period == "custom":
        first, last = given.get("first") or now.date(), given.get("last") or now.date()
        return midnight(first), min(midnight(last) + DAY, end)
    return LOOKBACKS[period].start(now), end


@dataclass(frozen=True, slots=True)
class Stat:
    """A figure, and its change from the preceding period."""

    title: str
    text: str
    change: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of the chart: as drawn, and as text."""

    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Series:
    """One series, distinguished by colour (a class) and stripes (an SVG dash array)."""

    name: str
    total: str
    colour: str
    stripes: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A row per bucket with a cell per series; no rows if there is no usage."""

    series: Sequence[Series]
    lines: Sequence[tuple[datetime, Sequence[Cell]]]


@dataclass(frozen=True, slots=True)
class UsageScope:
    """The usage that a page shows: what it sums up, how groups are named, and the URLs with
    details of a group or an hour."""

    used: Used
    totals: Used
    """As `used`, for sums grouped only by time."""
    names: Callable[[str, Sequence[Any]], Mapping[Any, str]]
    requests: str
    """URL of the list of requests."""
    closer: Callable[[UsageQuestion, Any], str]
    """URL with the details of a group; empty if there is none."""
    more: Callable[[UsageQuestion, Row, Sequence[Row]], tuple[list[Stat], Any]] = lambda *_: (
        [],
        None,
    )
    """Further figures from the total and the groups, and further context for the template."""


@require_GET
@tenant_page(Permission.READ_OWN_USAGE)
def usage(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Cost compared with the preceding period, the chart, the sums by group, and failures.

    Of the whole tenant or of the caller's own keys, depending on permissions.
    """
    form, tenant = UsageForm(request.GET, BY), caller.tenant
    now = timezone.now()
    asked = form.question(now)
    listed = reverse("requests", args=[tenant.slug]) if caller.sees_requests else ""
    names, closer = partial(_names, tenant), partial(_closer, listed)
    scope = UsageScope(caller.usage(), caller.totals(), names, listed, closer)
    context: dict[str, Any] = {
        "own": not caller.sees_all_sums,
        "may_create": caller.may(Permission.EDIT_OWN_KEYS),
        "csv": _csv(asked, tenant),
    }
    if caller.may(Permission.READ_USAGE):
        context["failures"] = failures(tenant, asked.start, asked.end)
    if caller.sees_all_sums:
        context["budget"] = ceilings.in_force(LimitScope(tenant).sets())[MONTHLY]
    return page(request, form, asked, scope, context)


def page(
    request: HttpRequest,
    form: UsageForm,
    asked: UsageQuestion,
    scope: UsageScope,
    context: Mapping[str, Any],
    template: str = "usage.html",
) -> HttpResponse:
    """The page of this usage."""
    totals, now = scope.totals, timezone.now()
    rows = groups(asked, scope.used)
    buckets = stacks(asked, scope, rows[:MAX_SERIES])
    total = added_up(buckets.values())
    names = scope.names(asked.by, [row[asked.by] for row in rows])
    more_stats, more = scope.more(asked, total, rows)
    month = added_up(totals.sums([], month_start(now), month_end(now)))
    cost, *others = stats(total, added_up(totals.sums([], *asked.before)))
    left = rest(total, rows) if len(rows) == MAX_ROWS else None
    table = with_costs([*_with_shares(total, rows), *([left] if left else []), total])
    context = {
        **context,
        "form": form,
        "asked": asked,
        "periods": [(asked.query(period=name), text, name) for name, text in CHOICES.items()],
        "stats": [
            cost,
            forecast(month["cost"], now, context.get("budget")),
            *more_stats,
            *others,
        ],
        "more": more,
        "chart": (drawn := chart(asked, buckets, rows, names) if rows else None),
        "lines": [
            (at, cells, drill_down_url(asked, at, scope.requests))
            for at, cells in (drawn.lines if drawn else ())
        ],
        "rows": [
            (names[row[asked.by]], row | {"url": scope.closer(asked, row[asked.by])})
            for row in table[: len(rows)]
        ],
        "rest": table[-2] if left else None,
        "total": _with_uncached(table[-1]),
        "ever": bool(rows) or totals.exists(),
        "by_title": form.groups[asked.by],
        "show_title": SHOW[asked.show],
        "requests_url": scope.requests,
        "failures_in": within(asked.start, asked.end),
    }
    with timezone.override(UTC):  # its days are those of the bill
        return render(request, template, context, status=422 if form.errors else 200)


def within(start: datetime, end: datetime) -> str:
    """The query with which the list of requests shows this period."""
    form = "%Y-%m-%dT%H:%M"
    return urlencode({"since": f"{start:{form}}", "until": f"{end:{form}}"})


def drill_down_url(asked: UsageQuestion, at: datetime, requests: str) -> str:
    """URL with the details of a bar: a month's days, a day's hours, an hour's requests (empty if
    there is no list of `requests`)."""
    if asked.bucket == "hour":
        return requests and f"{requests}?{within(at, at + HOUR)}"
    last = month_end(at) if asked.bucket == "month" else at + DAY
    days = {"first": f"{at:%Y-%m-%d}", "last": f"{last - DAY:%Y-%m-%d}"}
    return "?" + urlencode({"period": "custom", "by": asked.by, "show": asked.show} | days)


def _closer(requests: str, asked: UsageQuestion, group: Any) -> str:
    """URL of the requests of one group; empty for members and BASE, by which none are filtered,
    and without a list of `requests`."""
    names = {"adapter": "model", "model": "model", "key": "key"}
    if asked.by not in names or not group or not requests:
        return ""
    return f"{requests}?{urlencode({names[asked.by]: group})}&{within(asked.start, asked.end)}"


def forecast(spent: int, now: datetime, budget: int | None) -> Stat:
    """This month's expected cost at its pace so far, and its share of the budget (in micro-units;
    None if there is none)."""
    length = month_end(now) - month_start(now)
    expected = round(pace_of_month(spent, now) * length.total_seconds())
    detail = f"{money(spent)} so far"
    if budget:
        detail += f"; {percent(expected / (budget * MICRO))} of the {money(budget * MICRO)} budget"
    return Stat(f"{now:%B} forecast", money(expected), detail)


def added_up(rows: Iterable[Row]) -> dict[str, int]:
    """The sums over all rows; zeros if there are none."""
    found = list(rows)
    return {name: sum(int(row[name]) for row in found) for name in FIGURES}


def groups(asked: UsageQuestion, used: Used) -> list[dict[str, Any]]:
    """The sums of the largest groups, largest first."""
    rows = list(asked.sums(used, asked.by).order_by(asked.shown.desc(), asked.by)[:MAX_ROWS])
    return [_with_uncached(row) for row in rows]


def stacks(
    asked: UsageQuestion, scope: UsageScope, series: Sequence[Row]
) -> dict[datetime, dict[str, Any]]:
    """The sums of each bucket, with the value of each series as `part0` and so on, where it has
    one."""
    parts = {row[asked.by]: f"part{i}" for i, row in enumerate(series)}
    sums = asked.sums(scope.used, asked.bucket, asked.by)
    # Read before the totals, so that those have all of its buckets.
    series_sums = list(sums.filter(**{f"{asked.by}__in": list(parts)}))
    found = {row[asked.bucket]: dict(row) for row in asked.sums(scope.totals, asked.bucket)}
    for row in series_sums:
        found[row[asked.bucket]][parts[row[asked.by]]] = asked.value(row)
    return found


def _with_uncached(row: Row) -> dict[str, Any]:
    return {**row, "uncached_tokens": row["prompt_tokens"] - row["cached_tokens"]}


def _with_shares(total: Row, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Each with its share of the cost."""
    whole = int(total["cost"])
    return [{**row, "share": int(row["cost"]) / whole if whole else None} for row in rows]


def with_costs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each with its cost as `cost_text`, exact, so that the column adds up to its sum."""
    text = aligned_money(row["cost"] for row in rows)
    return [{**row, "cost_text": text(row["cost"])} for row in rows]


def rest(total: Row, rows: Sequence[Row]) -> dict[str, Any] | None:
    """The sum of all groups that are not in the rows; None if there are none."""
    shown = added_up(rows)
    left = {name: total[name] - shown[name] for name in FIGURES}
    return _with_shares(total, [_with_uncached(left)])[0] if left["requests"] else None


def stats(now: Row, before: Row) -> list[Stat]:
    now, before = _with_uncached(now), _with_uncached(before)
    titles = {
        "cost": "Cost",
        "requests": "Billed requests",
        "uncached_tokens": "Uncached prompt tokens",
        "cached_tokens": "Cached prompt tokens",
        "completion_tokens": "Output tokens",
    }
    return [
        Stat(
            title,
            money(now[name]) if name == "cost" else number(now[name]),
            change(now[name], before[name]),
        )
        for name, title in titles.items()
    ]


def change(now: int, before: int) -> str:
    """The change of a figure, in words."""
    if now == before:
        return "unchanged"
    if before == 0:
        return "no previous usage"
    percent = round((now - before) * 100 / before)
    if percent == 0:
        return "unchanged"
    return f"{percent:+,d}% vs previous period".replace("-", "\u2212")


def chart(
    asked: UsageQuestion,
    buckets: Mapping[datetime, Row],
    rows: Sequence[Row],
    names: Mapping[Any, str],
) -> Chart:
    """The first rows as series, and one more for the rest of each bucket."""
    shown = [names[row[asked.by]] for row in rows[:MAX_SERIES]]
    named = shown + ([OTHER] if len(rows) > MAX_SERIES else [])
    lines = [
        (at, _line(asked, buckets.get(at), len(shown))[: len(named)]) for at in asked.buckets()
    ]
    series = [
        Series(name, asked.text(sum(line[i] for _, line in lines if line)), *LOOKS[i])
        for i, name in enumerate(named)
    ]
    return Chart(series, _cells(asked, lines))


def _line(asked: UsageQuestion, bucket: Row | None, parts: int) -> list[int]:
    """The values of a bucket's series and its rest; empty if nothing was used."""
    if bucket is None:
        return []
    values = [bucket.get(f"part{i}", 0) for i in range(parts)]
    return [*values, asked.value(bucket) - sum(values)]


def _cells(
    asked: UsageQuestion, lines: Sequence[tuple[datetime, Sequence[int]]]
) -> list[tuple[datetime, Sequence[Cell]]]:
    if asked.show != "cost":
        return [(at, [Cell(value, number(value)) for value in line]) for at, line in lines]
    text = aligned_money(value for _, line in lines for value in line)
    return [(at, [Cell(value / PICO, text(value)) for value in line]) for at, line in lines]


def _names(tenant: Tenant, by: str, found: Sequence[Any]) -> Mapping[Any, str]:
    """Display names of the groups."""
    if by == "member":
        members = User.objects.in_bulk(found)
        return {pk: members[pk].username if pk in members else NOBODY for pk in found}
    if by != "key":
        return {one: one or BASE for one in found}
    known = dict(tenant.keys.filter(pk__in=found).values_list("pk", "name"))
    return {pk: known.get(pk, f"deleted key {pk}") for pk in found}


def _csv(asked: UsageQuestion, tenant: Tenant) -> list[tuple[str, str]]:
    """Links to the same usage as CSV from the API, with all groups."""
    query = {
        "format": "csv",
        "tenant": tenant.slug,
        "bucket": asked.bucket,
        "by": asked.by,
        "start": f"{asked.start:%Y-%m-%dT%H:%M:%SZ}",
        "end": f"{asked.end:%Y-%m-%dT%H:%M:%SZ}",
    }
    return [
        (f"/api/v1/{name}?{urlencode(query)}", f"{title} as CSV")
        for name, title in (("usage", "Usage"), ("costs", "Costs"))
    ]
