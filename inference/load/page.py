"""A run's report as one HTML file, which loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from inference.load.figures import percentile
from inference.load.plots import Plot, PlotAxis, PlotLine
from inference.load.report import COLUMNS, SHOWN_TENANTS, TrafficReport
from inference.load.sending import LoadOutcome

BINS = 60
STEPS = 200
"""Points of a distribution's line."""
STYLE = """
:root{color-scheme:light dark;--c0:light-dark(#1d4ed8,#7aa2ff);--c1:light-dark(#b45309,#f0b35e);
--c2:light-dark(#b91c1c,#ff8f8f);--grid:light-dark(#dde1e7,#33383f);--back:light-dark(#fff,#16191d)}
body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;
background:var(--back)}
h1{font-size:1.4rem}h2{font-size:1.05rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}th,td{text-align:left;padding:.25rem .75rem .25rem 0;
border-bottom:1px solid var(--grid);white-space:nowrap}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.5rem;margin:0}dd{margin:0;
overflow-wrap:anywhere}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(28rem,1fr));
gap:1rem 2rem}figure{margin:0}svg{width:100%;height:auto}svg text{font-size:14px;fill:currentColor}
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:1.8}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1);stroke-dasharray:7 3}.c2{stroke:var(--c2);
stroke-dasharray:2 3}.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;padding:0;
margin:0}.mark{display:inline-block;width:1.6em;border-top:3px solid;margin-right:.4em;
vertical-align:.25em}.m0{border-color:var(--c0)}.m1{border-color:var(--c1);border-top-style:dashed}
.m2{border-color:var(--c2);border-top-style:dotted}
@media(max-width:40rem){dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}
.plots{grid-template-columns:1fr}}
"""


def page(report: TrafficReport) -> str:
    """The whole file."""
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.facts()
    )
    notes = "".join(f"<p><strong>Note:</strong> {escape(note)}</p>" for note in report.notes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Load report</title><style>{STYLE}</style></head><body><main>"
        f"<h1>Load report</h1><dl>{facts}</dl>{notes}"
        f"<h2>Figures</h2>{_table(report)}"
        f'<h2>Plots</h2><div class="plots">{"".join(_figure(one) for one in plots(report))}</div>'
        "<p>Latencies count from the time at which a request was planned, whether or not the "
        "endpoint was ready to take it then.</p></main></body></html>"
    )


def _table(report: TrafficReport) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in COLUMNS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in report.cells(name, found))}</tr>"
        for name, found in report.rows()
    )
    more = len(report.tenants) - SHOWN_TENANTS
    others = f"<p>{more:,} tenants with fewer requests are not shown.</p>" if more > 0 else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Figures"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<p>Latencies in milliseconds: p50 / p90 / p99 / p99.9.</p>{others}"
    )


def _figure(plot: Plot) -> str:
    return (
        f"<figure><figcaption><strong>{escape(plot.title)}</strong></figcaption>"
        f"{plot.legend()}{plot.svg()}</figure>"
    )


def plots(report: TrafficReport) -> list[Plot]:
    """Rates and latencies over time, and the latencies' distributions."""
    answered = [one for one in report.outcomes if not one.code]
    width_s = max(report.wall_s, 1e-9) / BINS
    return [
        _rates(report, width_s),
        _latency_over_time(answered, width_s),
        _distribution("TTFT", [one.ttft_s for one in answered]),
        _distribution("End to end", [one.e2e_s for one in answered]),
    ]


def _rates(report: TrafficReport, width_s: float) -> Plot:
    outcomes = report.outcomes
    lines = [
        PlotLine("planned", _per_second((one.request.at_s for one in outcomes), width_s)),
        PlotLine(
            "answered", _per_second((one.last_s for one in outcomes if not one.code), width_s)
        ),
        PlotLine(
            "failed, by planned time",
            _per_second((one.request.at_s for one in outcomes if one.code), width_s),
        ),
    ]
    return _plot("Requests over time", lines, "seconds", "requests/s")


def _latency_over_time(answered: Sequence[LoadOutcome], width_s: float) -> Plot:
    bins: dict[int, list[float]] = {}
    for one in answered:
        bins.setdefault(int(one.request.at_s / width_s), []).append(one.ttft_s)
    lines = [
        PlotLine(name, [((at + 0.5) * width_s, value(bins[at])) for at in sorted(bins)])
        for name, value in (("p50", _at(0.5)), ("p99", _at(0.99)))
    ]
    return _plot("TTFT by planned time", lines, "seconds", "seconds", log=True)


def _at(share: float) -> Callable[[list[float]], float]:
    return lambda values: percentile(sorted(values), share)


def _distribution(name: str, values: list[float]) -> Plot:
    ordered = sorted(values)
    shares = [step / STEPS for step in range(STEPS + 1)] if ordered else []
    points = [(percentile(ordered, share), 100 * share) for share in shares]
    x = PlotAxis.over("seconds", ordered, log=True)
    return Plot(
        f"{name}: share of answers within a time",
        x,
        PlotAxis("percent", 0, 100),
        [PlotLine(name, points)],
    )


def _per_second(times: Iterable[float], width_s: float) -> list[tuple[float, float]]:
    counts = [0] * BINS
    for at_s in times:
        counts[min(BINS - 1, int(at_s / width_s))] += 1
    return [((at + 0.5) * width_s, count / width_s) for at, count in enumerate(counts)]


def _plot(title: str, lines: list[PlotLine], x: str, y: str, *, log: bool = False) -> Plot:
    points = [point for line in lines for point in line.points]
    return Plot(
        title,
        PlotAxis.over(x, [at for at, _ in points]),
        PlotAxis.over(y, [value for _, value in points], log=log),
        lines,
    )
