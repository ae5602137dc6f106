"""The traffic of an overview's period: a chart over time, and the busiest adapters.

From the figures of gateways, as the health strip above them; the chart is drawn from the strip's
own sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Sum

from frontend.formats import number
from frontend.views.overview.health import ComparedSums, HealthWindow, RequestSums, rows_of
from frontend.views.usage import LOOKS, Cell, Chart, Series
from tenants.permissions import Caller
from tenants.utc import DAY

MOST = 8
"""Maximum number of adapters listed."""
BASE = "Without an adapter"
"""Label for requests to base models, and to unknown models, which are refused."""

Value = Callable[[RequestSums], int]
Parts = Mapping[str, Value]

REQUESTS: Parts = {
    "Answered": lambda sums: sums.requests - sums.wrong,
    "Refused": lambda sums: sums.refused,
    "Failed": lambda sums: sums.failed,
}
TOKENS: Parts = {
    "Uncached prompt": lambda sums: sums.prompt_tokens - sums.cached_tokens,
    "Cached prompt": lambda sums: sums.cached_tokens,
    "Output": lambda sums: sums.output_tokens,
}
STRUCTURES: Parts = {
    "Conformed": lambda sums: sums.conformed,
    "Malformed": lambda sums: sums.malformed,
    "Unchecked": lambda sums: sums.unchecked,
}
SHOWN: Mapping[str, tuple[str, Parts]] = {
    "requests": ("Requests", REQUESTS),
    "tokens": ("Tokens", TOKENS),
    "wrong": ("Errors and refusals", {name: REQUESTS[name] for name in ("Refused", "Failed")}),
    "structure": ("Answers with a schema", STRUCTURES),
}
"""What the chart can show, by its name in the query: a title, and the series."""


def chart_of(shown: str, sums: ComparedSums) -> dict[str, Any]:
    """Context of the chart of requests, unless another of SHOWN is named."""
    shown = shown if shown in SHOWN else next(iter(SHOWN))
    title, parts = SHOWN[shown]
    values = [[value(one) for value in parts.values()] if one else [] for one in sums.steps]
    series = [
        Series(name, number(value(sums.now)), *look)
        for (name, value), look in zip(parts.items(), LOOKS, strict=False)
    ]
    cells = [[Cell(value, number(value)) for value in line] for line in values]
    lines = list(zip(sums.window.steps(), cells, strict=True))
    return {
        "shown": shown,
        "shown_title": title,
        "choices": [(name, title) for name, (title, _) in SHOWN.items()],
        "chart": Chart(series, lines),
        "lines": [(at, line, "") for at, line in lines],
        "daily": sums.window.period.step >= DAY,
    }


@dataclass(frozen=True, slots=True)
class BusyAdapter:
    """An adapter's requests in the period; `adapter` is empty for those without one."""

    adapter: str
    sums: RequestSums

    @property
    def name(self) -> str:
        return self.adapter or BASE

    @property
    def ttft_s(self) -> float | None:
        return self.sums.ttft_s(0.95)


def busiest(caller: Caller, window: HealthWindow) -> Sequence[BusyAdapter]:
    """The adapters with the most requests, of the whole tenant or of the caller's own keys."""
    found = rows_of(caller, window.period).between(window.start, window.end)
    most = found.order_by().values("adapter").annotate(count=Sum("requests"))
    names = most.order_by("-count", "adapter").values_list("adapter", flat=True)[:MOST]
    # Of these alone: sums of all adapters' times would take three times the CPU.
    sums = found.filter(adapter__in=list(names)).figures("adapter", times=["first_tokens"])
    rows = sums.order_by("-requests", "adapter")
    return [BusyAdapter(row["adapter"], RequestSums([row])) for row in rows]
