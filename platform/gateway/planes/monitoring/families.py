"""Definitions of the metrics of `/metrics`: name, type and explanation. docs/observe.md lists them.

Metrics of shared state (engines, pools, drift) are the same from each gateway, so take their `max`
over gateways; all others cover only this process, and add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from inference.gateway.fleet.demand import FIGURES
from inference.gateway.hub import Hub
from inference.gateway.measuring.histogram import Histogram, HistogramExample
from inference.gateway.measuring.measures import OF_ENGINES, Measures
from inference.gateway.requests.journey import MoveReason, MoveResult
from inference.gateway.routing.engine_state import EngineState
from tenants.batches.figures import BatchStanding, InBackground
from tenants.billing.drift import Drift
from tenants.billing.ledger import Ledger
from tenants.limits.kinds import KINDS
from tenants.limits.limiter import StoreLimiter
from tenants.limits.refusals import SCOPES
from tenants.rollouts.figures import EndedCounts, UnderWay

Families = Iterator[Metric]


@dataclass(frozen=True, slots=True)
class OfEngine:
    """A figure that an engine reports."""

    text: str
    value: Callable[[EngineState], float]


ENGINE_GAUGES: Mapping[str, OfEngine] = {
    "running": OfEngine("Requests running on the engine.", lambda one: one.stats.running),
    "waiting": OfEngine("Requests in vLLM's own queue.", lambda one: one.stats.waiting),
    "queued": OfEngine("Requests in the agent's fair queue.", lambda one: one.stats.queued),
    "queued_tokens": OfEngine(
        "Prompt tokens still to be computed of requests that have no output yet.",
        lambda one: one.stats.queued_tokens,
    ),
    "kv_usage": OfEngine("Fraction of KV blocks in use, 0 to 1.", lambda one: one.stats.kv_usage),
    "kv_tokens": OfEngine("Capacity of the KV cache in tokens.", lambda one: one.info.kv_tokens),
    "adapter_slots": OfEngine(
        "Adapters that can run at the same time.", lambda one: one.info.max_loras
    ),
    "adapters_active": OfEngine(
        "Adapters with running requests, which occupy slots.", lambda one: len(one.stats.active)
    ),
    "adapters_awaited": OfEngine(
        "Adapters whose requests wait for a slot or for loading; at most 64.",
        lambda one: len(one.stats.awaited),
    ),
    "adapters_resident": OfEngine(
        "Adapters loaded on the engine, running or not.", lambda one: len(one.resident)
    ),
    "adapters_spare": OfEngine(
        "Adapters that could be loaded without evicting another one.", lambda one: one.stats.spare
    ),
    "draining": OfEngine(
        "1 while the engine drains and accepts no new requests.", lambda one: float(one.draining)
    ),
    "journal_unbilled_requests": OfEngine(
        "Ended requests in the engine's journal that no gateway has acknowledged.",
        lambda one: one.stats.unbilled.requests,
    ),
    "journal_unbilled_tokens": OfEngine(
        "Output tokens of these requests.", lambda one: one.stats.unbilled.completion_tokens
    ),
}
ENGINE_COUNTERS: Mapping[str, OfEngine] = {
    "prompt_tokens": OfEngine(
        "Prompt tokens since the engine started.", lambda one: one.stats.prompt_tokens
    ),
    "cached_tokens": OfEngine(
        "Prompt tokens found in the prefix cache since the engine started.",
        lambda one: one.stats.cached_tokens,
    ),
    "completion_tokens": OfEngine(
        "Output tokens since the engine started.", lambda one: one.stats.completion_tokens
    ),
    "failures": OfEngine(
        "How often the engine's core died or hung, counted across restarts.",
        lambda one: one.stats.failures,
    ),
    "refused_suspects": OfEngine(
        "Requests refused because they made engines fail twice.",
        lambda one: one.stats.refused_suspects,
    ),
}


def engines(states: Sequence[EngineState]) -> Families:
    """The connected engines' reports."""
    labels = ["engine", "base_model"]
    kinds: list[tuple[Mapping[str, OfEngine], Any]] = [
        (ENGINE_GAUGES, GaugeMetricFamily), (ENGINE_COUNTERS, CounterMetricFamily),
    ]  # fmt: skip
    for figures, kind in kinds:
        for name, figure in figures.items():
            family = kind(f"lorikeet_engine_{name}", figure.text, labels=labels)
            for state in states:
                family.add_metric([state.id, state.info.name], figure.value(state))
            yield family


def pools(figures: Mapping[str, Mapping[str, float]]) -> Families:
    """The demand for each base model over the whole fleet."""
    for name, text in FIGURES.items():
        family = GaugeMetricFamily(f"lorikeet_pool_{name}", text, labels=["base_model"])
        for base_model, found in figures.items():
            if name in found:
                family.add_metric([base_model], found[name])
        yield family


def requests(measures: Measures) -> Families:
    """How long this gateway's requests took, and how they ended."""
    for name, (text, _) in OF_ENGINES.items():
        family = HistogramMetricFamily(f"lorikeet_{name}", text, labels=["base_model", "engine"])
        for base_model, engine, histogram in measures.histograms(name):
            _add(family, [base_model, engine], histogram)
        yield family
    held = HistogramMetricFamily(
        "lorikeet_hold_seconds",
        "How long requests were held at the gateway because no engine could take them; "
        "only held requests.",
        labels=["base_model"],
    )
    for base_model, histogram in measures.hold_seconds.items():
        _add(held, [base_model], histogram)
    yield held
    yield _counters(
        "lorikeet_requests",
        "Inference requests by outcome (`completed`, `cancelled`, `refused` or `failed`) "
        "and by finish reason or error code.",
        ["base_model", "engine", "outcome", "code"],
        measures.requests,
    )
    yield _counters(
        "lorikeet_refusals",
        "Requests that a limit refused, by the limit's kind and scope.",
        ["kind", "scope"],
        dict.fromkeys(product(KINDS, SCOPES.values()), 0) | measures.refusals,
    )
    yield _counters(
        "lorikeet_engines_lost",
        "Engines that disconnected without announcing it.",
        ["base_model"],
        {(base_model,): count for base_model, count in measures.engines_lost.items()},
    )
    busiest = measures.busiest
    if busiest.most:
        yield _counters(
            "lorikeet_tenant_requests",
            "Requests of the busiest tenants (LORIKEET_METRICS_TENANTS) and of all others.",
            ["tenant", "outcome"],
            busiest.requests,
        )
        yield _counters(
            "lorikeet_tenant_tokens",
            "Tokens of the busiest tenants and of all others together, by kind: `prompt` "
            "or `output`.",
            ["tenant", "kind"],
            busiest.tokens,
        )


def hub(hub: Hub) -> Families:
    """Requests in flight, moves, and what the hub has dropped or quarantined."""
    yield _counters(
        "lorikeet_moves",
        "Requests that had to leave their engine before they were complete, by reason and outcome.",
        ["reason", "outcome"],
        dict.fromkeys(product(MoveReason, MoveResult), 0) | hub.moves,
    )
    yield CounterMetricFamily(
        "lorikeet_answers_adopted",
        "Running answers of other gateways that this one took over.",
        value=hub.adopted,
    )
    gaps = HistogramMetricFamily(
        "lorikeet_move_gap_seconds",
        "How long clients of streams that moved to another engine waited for the next token.",
        labels=[],
    )
    _add(gaps, [], hub.gaps)
    yield gaps
    yield GaugeMetricFamily("lorikeet_streams", "Requests in flight.", value=hub.in_flight)
    yield GaugeMetricFamily(
        "lorikeet_refused_suspects",
        "Requests that are refused because they made engines fail twice.",
        value=len(hub.refused_suspects),
    )
    yield CounterMetricFamily(
        "lorikeet_requests_crashed",
        "Errors in the handling of requests, each of which ended its own request alone.",
        value=hub.crashed,
    )
    yield CounterMetricFamily(
        "lorikeet_link_unknown_frames",
        "Frames from engines with a type that this version does not know.",
        value=hub.unknown_frames,
    )
    yield CounterMetricFamily(
        "lorikeet_ledger_quarantined",
        "Ended requests that engines reported but that no gateway had dispatched to them.",
        value=hub.intake.quarantined,
    )
    yield CounterMetricFamily(
        "lorikeet_outcomes_dropped",
        "Requests missing from the console's history because the database was unavailable "
        "for too long.",
        value=hub.outcomes.dropped,
    )
    yield CounterMetricFamily(
        "lorikeet_content_dropped",
        "Requests whose content should have been stored but was not, for lack of memory "
        "or of the database.",
        value=hub.contents.dropped,
    )


def ledger(ledger: Ledger) -> Families:
    """Entries waiting for the ledger, and entries written."""
    yield GaugeMetricFamily(
        "lorikeet_ledger_waiting",
        "Ended requests waiting to be written to the ledger.",
        value=ledger.waiting,
    )
    yield CounterMetricFamily(
        "lorikeet_ledger_written", "Ended requests written to the ledger.", value=ledger.written
    )
    yield CounterMetricFamily(
        "lorikeet_ledger_unbillable",
        "Ended requests that the ledger refused and that were logged instead.",
        value=ledger.unbillable,
    )
    yield CounterMetricFamily(
        "lorikeet_ledger_turned_away",
        "Ended requests turned away for lack of memory; their engines send them again.",
        value=ledger.turned_away,
    )
    yield CounterMetricFamily(
        "lorikeet_regenerated_tokens",
        "Output tokens of lost engines that other engines generated again.",
        value=ledger.regenerated_tokens,
    )


def limits(limiter: StoreLimiter) -> Families:
    """Reservations of limits, and outages of Redis."""
    yield GaugeMetricFamily(
        "lorikeet_limits_reservations", "Live reservations.", value=limiter.reservations
    )
    yield GaugeMetricFamily(
        "lorikeet_limits_degraded", "1 while Redis is unavailable.", value=limiter.degraded
    )
    yield CounterMetricFamily(
        "lorikeet_limits_degraded_decisions",
        "Requests admitted or refused without Redis.",
        value=limiter.degraded_decisions,
    )
    yield CounterMetricFamily(
        "lorikeet_limits_redis_failures",
        "Failed calls of Redis.",
        value=limiter.redis_failures,
    )


DRIFT = {
    "requests": ("lorikeet_drift_requests", "Requests missing from the ledger; should be 0."),
    "tokens": ("lorikeet_drift_tokens", "Tokens missing from the ledger; should be 0."),
    "unjournaled_tokens": (
        "lorikeet_unjournaled_tokens",
        "Output tokens missing from the engine's journal; should be 0.",
    ),
}


def drift(found: Sequence[Drift]) -> Families:
    """Usage in engines' journals that the ledger lacks."""
    for attribute, (name, text) in DRIFT.items():
        family = GaugeMetricFamily(name, text, labels=["engine", "journal"])
        for one in found:
            labels = [one.journal.engine_id, one.journal.journal]
            family.add_metric(labels, getattr(one, attribute))
        yield family


ROLLOUT_GAUGES: Mapping[str, tuple[str, Callable[[UnderWay], float]]] = {
    "weight": (
        "Percentage of tenants that may be on the new revision.", lambda one: one.weight
    ),
    "paused": ("1 while the rollout is paused.", lambda one: one.paused),
    "overdue_seconds": (
        "Seconds by which the rollout has exceeded the planned time at its weight.",
        lambda one: one.overdue_s,
    ),
    "untried_adapters": (
        "Live adapters to be tested on the new revision before the next step.",
        lambda one: one.report.get("untried", 0),
    ),
}  # fmt: skip
ROLLOUT_SIDES: Mapping[str, tuple[str, str]] = {
    "error_percent": ("Percentage of recent requests that failed.", "error_percent"),
    "ttft_p95_seconds": ("95th percentile of recent times to first token.", "ttft_p95_s"),
}
"""The figures that guards compare: the metric's text, and the figure's name in
`tenants.rollouts.progress`."""


def rollouts(open: Sequence[UnderWay], ended: Sequence[EndedCounts]) -> Families:
    """The progress of rollouts, the figures that their guards see, and their outcomes."""
    for name, (text, value) in ROLLOUT_GAUGES.items():
        family = GaugeMetricFamily(f"lorikeet_rollout_{name}", text, labels=["base_model"])
        for one in open:
            family.add_metric([one.base_model], value(one))
        yield family
    tenants = GaugeMetricFamily(
        "lorikeet_rollout_tenants",
        "Tenants on the `new` revision, on the `present` ones, and those that stay "
        "`behind` because an adapter failed on the new one.",
        labels=["base_model", "place"],
    )
    for one in open:
        for place, count in one.tenants():
            tenants.add_metric([one.base_model, place], count)
    yield tenants
    for name, (text, figure) in ROLLOUT_SIDES.items():
        labels = ["base_model", "revision"]
        family = GaugeMetricFamily(f"lorikeet_rollout_{name}", text, labels=labels)
        for one in open:
            for side, seen in one.guarded(figure):
                family.add_metric([one.base_model, side], seen)
        yield family
    counts = {
        (one.base_model, outcome): count for one in ended for outcome, count in one.outcomes()
    }
    yield _counters(
        "lorikeet_rollouts",
        "Rollouts that ended, by outcome: `finished`, `aborted`, or `rolled_back` by a guard.",
        ["base_model", "outcome"],
        counts,
    )


BATCH_GAUGES: Mapping[str, tuple[str, Callable[[BatchStanding], float]]] = {
    "batches": ("Unfinished batches.", lambda one: one.batches),
    "batch_lines": (
        "Requests of unfinished batches that have no answer yet.",
        lambda one: one.lines,
    ),
    "batch_oldest_seconds": (
        "Age of the oldest batch in this state; 0 if there is none.",
        lambda one: one.oldest_s,
    ),
}


def batches(found: Sequence[BatchStanding]) -> Families:
    """Unfinished batches by status."""
    for name, (text, value) in BATCH_GAUGES.items():
        family = GaugeMetricFamily(f"lorikeet_{name}", text, labels=["status"])
        for one in found:
            family.add_metric([one.status], value(one))
        yield family


def in_background(found: Sequence[InBackground]) -> Families:
    """Unfinished background responses by status."""
    count = GaugeMetricFamily(
        "lorikeet_background_responses",
        "Unfinished background responses.",
        labels=["status"],
    )
    oldest = GaugeMetricFamily(
        "lorikeet_background_oldest_seconds",
        "Age of the oldest background response in this state; 0 if there is none.",
        labels=["status"],
    )
    for one in found:
        count.add_metric([one.status], one.responses)
        oldest.add_metric([one.status], one.oldest_s)
    yield from (count, oldest)


def disk(free_bytes: int, total_bytes: int) -> Families:
    """The disk that this process's folder is on."""
    yield GaugeMetricFamily(
        "lorikeet_disk_free_bytes",
        "Free space on the disk of this process's folder (LORIKEET_VAR).",
        value=free_bytes,
    )
    yield GaugeMetricFamily("lorikeet_disk_bytes", "Size of that disk.", value=total_bytes)


def _counters(
    name: str, text: str, labels: Sequence[str], counts: Mapping[Any, float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    buckets = [
        (bound, count) if example is None else (bound, count, _exemplar(example))
        for bound, count, example in histogram.buckets()
    ]
    family.add_metric(labels, buckets, histogram.total)


def _exemplar(example: HistogramExample) -> Exemplar:
    return Exemplar({"trace_id": example.trace_id}, example.value, example.at)
