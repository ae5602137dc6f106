"""Writes the dashboards in deploy/grafana as Grafana's JSON: `make dashboards`.

Each is a list of panels below. They use the recording rules of deploy/prometheus/rules.yml where
there are any, so that each engine counts once, regardless of the number of gateways.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "grafana"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${source}")
MODELS = 'base_model=~"$base_model"'
WIDTH, HEIGHT = 8, 8
"""Size of a panel in grid units; a row is 24 wide."""


@dataclass(frozen=True)
class Panel:
    """`series` has PromQL expressions with the legends of their lines."""

    title: str
    text: str
    unit: str
    series: Sequence[tuple[str, str]]
    is_figure: bool = False
    """Shows one number instead of lines over time."""


def quantiles(metric: str) -> list[tuple[str, str]]:
    """The p50, p95 and p99 of a histogram, over all engines."""
    buckets = f"sum by (le) (rate({metric}_bucket{{{MODELS}}}[$__rate_interval]))"
    return [
        (f"histogram_quantile({share}, {buckets})", f"p{share * 100:.0f}")
        for share in (0.5, 0.95, 0.99)
    ]


def rate(metric: str, by: str, selector: str = "") -> str:
    """The rate of a counter that each gateway has, summed over gateways."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


REQUESTS = [
    Panel(
        "Served",
        "Fraction of requests served over three days. The objective is 99.9 %.",
        "percentunit",
        [("1 - lorikeet:requests_unserved:ratio_rate3d", "")],
        is_figure=True,
    ),
    Panel(
        "Prompt",
        "Fraction of answers that started within 2.5 s, over three days. The objective is 99 %.",
        "percentunit",
        [("1 - lorikeet:first_tokens_late:ratio_rate3d", "")],
        is_figure=True,
    ),
    Panel(
        "In flight",
        "Running requests of all gateways.",
        "none",
        [("sum(lorikeet_streams)", "")],
        True,
    ),
    Panel(
        "Requests",
        "By outcome.",
        "reqps",
        [(rate("lorikeet_requests_total", "outcome"), "{{outcome}}")],
    ),
    Panel(
        "Errors and refusals",
        "By code, without requests that clients cancelled.",
        "reqps",
        [
            (
                rate("lorikeet_requests_total", "outcome, code", 'outcome=~"failed|refused"'),
                "{{outcome}}: {{code}}",
            )
        ],
    ),
    Panel(
        "Refused by limits",
        "By kind and scope of the limit.",
        "reqps",
        [(rate("lorikeet_refusals_total", "kind, scope"), "{{kind}} of the {{scope}}")],
    ),
    Panel(
        "Time to first token",
        "From a request's admission to its first token.",
        "s",
        quantiles("lorikeet_time_to_first_token_seconds"),
    ),
    Panel(
        "Time between tokens",
        "As they arrive at the gateway.",
        "s",
        quantiles("lorikeet_inter_token_seconds"),
    ),
    Panel(
        "Total time",
        "From a request's admission to the end of its answer.",
        "s",
        quantiles("lorikeet_end_to_end_seconds"),
    ),
    Panel(
        "Tokens",
        "Tokens of ended requests.",
        "short",
        [
            (f"sum(rate(lorikeet_{kind}_tokens_sum{{{MODELS}}}[$__rate_interval]))", kind)
            for kind in ("prompt", "output")
        ],
    ),
    Panel(
        "Prompt tokens per request",
        "Including cached tokens.",
        "short",
        quantiles("lorikeet_prompt_tokens"),
    ),
    Panel(
        "Output tokens per request",
        "Of all choices.",
        "short",
        quantiles("lorikeet_output_tokens"),
    ),
    Panel(
        "Burn rate: errors",
        "At 1 the error budget is just used up. Alerts fire at 14.4, 6 and 1.",
        "short",
        [
            (f"lorikeet:requests_unserved:ratio_rate{window} / 0.001", window)
            for window in ("5m", "1h", "6h", "3d")
        ],
    ),
    Panel(
        "Burn rate: late answers",
        "At 1 the error budget is just used up. Alerts fire at 14.4, 6 and 1.",
        "short",
        [
            (f"lorikeet:first_tokens_late:ratio_rate{window} / 0.01", window)
            for window in ("5m", "1h", "6h", "3d")
        ],
    ),
    Panel(
        "Busiest tenants",
        "Output tokens. Needs LORIKEET_METRICS_TENANTS.",
        "short",
        [(rate("lorikeet_tenant_tokens_total", "tenant", 'kind="output"'), "{{tenant}}")],
    ),
]

ENGINES = [
    Panel(
        "Engines",
        "Engines that accept new requests.",
        "none",
        [(f"sum(lorikeet:pool_engines:max{{{MODELS}}})", "")],
        is_figure=True,
    ),
    Panel(
        "Demand",
        "Requests that need an engine: running, queued, held and unmet.",
        "none",
        [(f"sum(lorikeet:pool_demand:max{{{MODELS}}})", "")],
        is_figure=True,
    ),
    Panel(
        "Lost in 15 minutes",
        "Engines that disconnected without announcing it.",
        "none",
        [(f"sum(lorikeet:engines_lost:increase15m{{{MODELS}}})", "")],
        is_figure=True,
    ),
    Panel(
        "Running",
        "Running requests per engine.",
        "none",
        [(f"lorikeet:engine_running:max{{{MODELS}}}", "{{engine}}")],
    ),
    Panel(
        "Queued",
        "Requests in each engine's fair queue.",
        "none",
        [(f"lorikeet:engine_queued:max{{{MODELS}}}", "{{engine}}")],
    ),
    Panel(
        "KV cache",
        "Fraction of KV blocks in use.",
        "percentunit",
        [(f"lorikeet:engine_kv_usage:max{{{MODELS}}}", "{{engine}}")],
    ),
    Panel(
        "Queueing time",
        "From an engine's receipt of a request to its admission.",
        "s",
        quantiles("lorikeet_queue_seconds"),
    ),
    Panel(
        "Adapter loading time",
        "How long requests wait until their adapter is loaded.",
        "s",
        quantiles("lorikeet_adapter_load_seconds"),
    ),
    Panel(
        "Held",
        "Requests held or refused at gateways because no engine can take them.",
        "none",
        [
            (f"lorikeet:pool_held:max{{{MODELS}}}", "held for {{base_model}}"),
            (f"lorikeet:pool_unmet:max{{{MODELS}}}", "refused for {{base_model}}"),
        ],
    ),
    Panel(
        "Adapter slots",
        "Fraction in use.",
        "percentunit",
        [
            (
                f"lorikeet:engine_adapters_active:max{{{MODELS}}}"
                f" / lorikeet:engine_adapter_slots:max{{{MODELS}}}",
                "{{engine}}",
            )
        ],
    ),
    Panel(
        "Loaded adapters",
        "Adapters loaded on each engine, and adapters that requests wait for.",
        "none",
        [
            (f"lorikeet:engine_adapters_resident:max{{{MODELS}}}", "{{engine}}"),
            (f"lorikeet:engine_adapters_awaited:max{{{MODELS}}}", "{{engine}}, awaited"),
        ],
    ),
    Panel(
        "Prompt tokens from the cache",
        "Fraction of prompt tokens found in the prefix cache.",
        "percentunit",
        [
            (
                f"lorikeet:engine_cached_tokens:rate5m{{{MODELS}}}"
                f" / (lorikeet:engine_prompt_tokens:rate5m{{{MODELS}}} > 0)",
                "{{engine}}",
            )
        ],
    ),
    Panel(
        "Output tokens",
        "Output tokens of each engine.",
        "short",
        [(f"lorikeet:engine_completion_tokens:rate5m{{{MODELS}}}", "{{engine}}")],
    ),
    Panel(
        "Moves",
        "Streams that moved from one engine to another in 15 minutes.",
        "none",
        [
            (
                "sum by (reason, outcome) (increase(lorikeet_moves_total[15m]))",
                "{{reason}}: {{outcome}}",
            )
        ],
    ),
    Panel(
        "Regenerated tokens",
        "Tokens of lost engines that other engines generated again.",
        "short",
        [("sum(rate(lorikeet_regenerated_tokens_total[$__rate_interval]))", "tokens/s")],
    ),
    Panel(
        "Failures",
        "Failures of engines' cores in 15 minutes.",
        "none",
        [(f"lorikeet:engine_failures:increase15m{{{MODELS}}}", "{{engine}}")],
    ),
]

PLATFORM = [
    Panel(
        "Gateways",
        "Gateways that answer.",
        "none",
        [('sum(up{job="lorikeet"})', "")],
        is_figure=True,
    ),
    Panel(
        "Drift",
        "Tokens that engines counted but the ledger lacks. Should be 0.",
        "none",
        [("sum(lorikeet:drift_tokens:max)", "")],
        is_figure=True,
    ),
    Panel(
        "Limits",
        "1 while Redis is unavailable.",
        "none",
        [("max(lorikeet_limits_degraded)", "")],
        is_figure=True,
    ),
    Panel(
        "Waiting for the ledger",
        "Ended requests in gateways and in engines' journals.",
        "none",
        [
            ("sum(lorikeet_ledger_waiting)", "gateways"),
            ("sum(lorikeet:engine_journal_unbilled_requests:max)", "journals"),
        ],
    ),
    Panel(
        "Written to the ledger",
        "Ended requests.",
        "reqps",
        [("sum(rate(lorikeet_ledger_written_total[$__rate_interval]))", "written")],
    ),
    Panel(
        "Not billed",
        "Entries that the database refused, that no gateway dispatched, or that arrived "
        "when memory was full.",
        "none",
        [
            (f"sum(increase(lorikeet_ledger_{name}_total[15m]))", name.replace("_", " "))
            for name in ("unbillable", "quarantined", "turned_away")
        ],
    ),
    Panel(
        "Reservations",
        "Live reservations of limits.",
        "none",
        [("sum by (instance) (lorikeet_limits_reservations)", "{{instance}}")],
    ),
    Panel(
        "Decisions without Redis",
        "Requests that each gateway admitted or refused on its own.",
        "reqps",
        [
            (
                "sum by (instance) "
                "(rate(lorikeet_limits_degraded_decisions_total[$__rate_interval]))",
                "{{instance}}",
            )
        ],
    ),
    Panel(
        "Free disk",
        "Fraction of the disk of LORIKEET_VAR that is free.",
        "percentunit",
        [("lorikeet_disk_free_bytes / lorikeet_disk_bytes", "{{instance}}")],
    ),
]

DASHBOARDS: Mapping[str, tuple[str, Sequence[Panel]]] = {
    "requests": ("Lorikeet: requests", REQUESTS),
    "engines": ("Lorikeet: engines", ENGINES),
    "platform": ("Lorikeet: billing, limits and disks", PLATFORM),
}


def made(name: str) -> str:
    """One dashboard, as JSON."""
    title, panels = DASHBOARDS[name]
    board = (
        dashboard.Dashboard(title)
        .uid(f"lorikeet-{name}")
        .tags(["lorikeet"])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("source").label("Source").type("prometheus"))
    )
    if any(MODELS in expression for panel in panels for expression, _ in panel.series):
        board.with_variable(
            dashboard.QueryVariable("base_model")
            .label("Base model")
            .datasource(SOURCE)
            .query("label_values(lorikeet_pool_engines, base_model)")
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .all_value(".*")
            .multi(True)
        )
    for number, panel in enumerate(panels, start=1):
        board.with_panel(_panel(panel).id(number))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    drawn = stat.Panel() if panel.is_figure else timeseries.Panel()
    drawn.title(panel.title).description(panel.text).unit(panel.unit)
    drawn.datasource(SOURCE).span(WIDTH).height(HEIGHT // 2 if panel.is_figure else HEIGHT)
    for name, (expression, legend) in zip(ascii_uppercase, panel.series, strict=False):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(name)
        drawn.with_target(query)
    return drawn


def main() -> None:
    """Write all dashboards."""
    for name in DASHBOARDS:
        file = FOLDER / f"{name}.json"
        file.write_text(made(name))
        print(file, file=sys.stderr)


if __name__ == "__main__":
    main()
