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
from inference.gateway.fleet.hub import Hub
from inference.gateway.measuring.histogram import Example, Histogram
from inference.gateway.measuring.measures import OF_ENGINES, Measures
from inference.gateway.requests.journey import Outcome, Why
from inference.gateway.routing.engine_state import EngineState
from tenants.batches.figures import InBackground, Standing
from tenants.billing.drift import Drift
from tenants.billing.ledger import Ledger
from tenants.limits.kinds import KINDS
from tenants.limits.limiter import StoreLimiter
from tenants.limits.refusals import SCOPES
from tenants.rollouts.figures import Ended, UnderWay

Families = Iterator[Metric]


@dataclass(frozen=True, slots=True)
class OfEngine:
    """A figure that an engine reports."""

    text: str
    value: Callable[[EngineState], float]


ENGINE_GAUGES: Mapping[str, OfEngine] = {
    "running": OfEngine("Requests that run on the engine.", lambda one: one.stats.running),
    "waiting": OfEngine("Requests in vLLM's own queue.", lambda one: one.stats.waiting),
    "queued": OfEngine("Requests in the agent's fair queue.", lambda one: one.stats.queued),
    "queued_tokens": OfEngine(
        "Prompt tokens of requests without output yet, as far as they have to be computed.",
        lambda one: one.stats.queued_tokens,
    ),
    "kv_usage": OfEngine("Share of KV blocks in use, 0 to 1.", lambda one: one.stats.kv_usage),
    "kv_tokens": OfEngine("Tokens that the KV cache holds.", lambda one: one.info.kv_tokens),
    "adapter_slots": OfEngine(
        "Adapters that can run at the same time.", lambda one: one.info.max_loras
    ),
    "adapters_active": OfEngine(
        "Adapters with running requests: they have a slot.", lambda one: len(one.stats.active)
    ),
    "adapters_awaited": OfEngine(
        "Adapters whose requests wait for a slot, or for their load; 64 at most.",
        lambda one: len(one.stats.awaited),
    ),
    "adapters_resident": OfEngine(
        "Adapters loaded on the engine, running or not.", lambda one: len(one.resident)
    ),
    "adapters_spare": OfEngine(
        "Adapters that could be loaded without one that has to go.", lambda one: one.stats.spare
    ),
    "draining": OfEngine(
        "1 while it takes no new requests, as it ends.", lambda one: float(one.draining)
    ),
    "journal_unbilled_requests": OfEngine(
        "Ended requests in its journal that no gateway has acknowledged.",
        lambda one: one.stats.unbilled.requests,
    ),
    "journal_unbilled_tokens": OfEngine(
        "Their output tokens.", lambda one: one.stats.unbilled.completion_tokens
    ),
}
ENGINE_COUNTERS: Mapping[str, OfEngine] = {
    "prompt_tokens": OfEngine(
        "Prompt tokens since the engine started.", lambda one: one.stats.prompt_tokens
    ),
    "cached_tokens": OfEngine(
        "Prompt tokens that the prefix cache held.", lambda one: one.stats.cached_tokens
    ),
    "completion_tokens": OfEngine(
        "Output tokens since the engine started.", lambda one: one.stats.completion_tokens
    ),
    "failures": OfEngine(
        "Times that the engine's core died or hung, over restarts.",
        lambda one: one.stats.failures,
    ),
    "refused_suspects": OfEngine(
        "Requests refused because engines had failed with them twice.",
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
        "How long requests were held at the gateway for want of an engine, of those that were.",
        labels=["base_model"],
    )
    for base_model, histogram in measures.hold_seconds.items():
        _add(held, [base_model], histogram)
    yield held
    yield _counters(
        "lorikeet_requests",
        "Requests to generate something, by how they ended: `completed`, `cancelled`, `refused` or "
        "`failed`, with the finish reason or the error's code.",
        ["base_model", "engine", "outcome", "code"],
        measures.requests,
    )
    yield _counters(
        "lorikeet_refusals",
        "Requests that a limit refused, by its kind, and whose limit it is.",
        ["kind", "scope"],
        dict.fromkeys(product(KINDS, SCOPES.values()), 0) | measures.refusals,
    )
    yield _counters(
        "lorikeet_engines_lost",
        "Engines that left without having said that they end.",
        ["base_model"],
        {(base_model,): count for base_model, count in measures.engines_lost.items()},
    )
    busiest = measures.busiest
    if busiest.most:
        yield _counters(
            "lorikeet_tenant_requests",
            "Requests of the busiest tenants (METRICS_TENANTS), and of all others.",
            ["tenant", "outcome"],
            busiest.requests,
        )
        yield _counters(
            "lorikeet_tenant_tokens",
            "Tokens of the busiest tenants, by kind: `prompt` or `output`.",
            ["tenant", "kind"],
            busiest.tokens,
        )


def hub(hub: Hub) -> Families:
    """Requests in flight, moves, and what the hub has dropped or quarantined."""
    yield _counters(
        "lorikeet_moves",
        "Requests that their engine did not bring to their end, and what became of them.",
        ["reason", "outcome"],
        dict.fromkeys(product(Why, Outcome), 0) | hub.moves,
    )
    yield CounterMetricFamily(
        "lorikeet_answers_adopted",
        "Running answers of other gateways that this one went on with.",
        value=hub.adopted,
    )
    gaps = HistogramMetricFamily(
        "lorikeet_move_gap_seconds", "How long readers of streams that moved waited.", labels=[]
    )
    _add(gaps, [], hub.gaps)
    yield gaps
    yield GaugeMetricFamily("lorikeet_streams", "Requests in flight.", value=hub.in_flight)
    yield GaugeMetricFamily(
        "lorikeet_refused_suspects",
        "Requests that are refused because engines failed with them twice.",
        value=len(hub.refused_suspects),
    )
    yield CounterMetricFamily(
        "lorikeet_link_unknown_frames",
        "Frames of engines that only newer versions know.",
        value=hub.unknown_frames,
    )
    yield CounterMetricFamily(
        "lorikeet_ledger_quarantined",
        "Ended requests that engines reported and no gateway dispatched to them.",
        value=hub.intake.quarantined,
    )
    yield CounterMetricFamily(
        "lorikeet_outcomes_dropped",
        "Requests that the console's history lacks: the database was away for too long.",
        value=hub.outcomes.dropped,
    )
    yield CounterMetricFamily(
        "lorikeet_content_dropped",
        "Requests of which content was to be kept, and was not: there was no room, or no database.",
        value=hub.contents.dropped,
    )


def ledger(ledger: Ledger) -> Families:
    """Entries waiting for the ledger, and entries written."""
    yield GaugeMetricFamily(
        "lorikeet_ledger_waiting", "Ended requests to be written.", value=ledger.waiting
    )
    yield CounterMetricFamily(
        "lorikeet_ledger_written", "Ended requests in the ledger.", value=ledger.written
    )
    yield CounterMetricFamily(
        "lorikeet_ledger_unbillable", "Of them, in the log instead.", value=ledger.unbillable
    )
    yield CounterMetricFamily(
        "lorikeet_ledger_turned_away",
        "Ended requests for which there was no room; their engines send them again.",
        value=ledger.turned_away,
    )
    yield CounterMetricFamily(
        "lorikeet_regenerated_tokens",
        "Output tokens that a lost engine had generated and another one generated again.",
        value=ledger.regenerated_tokens,
    )


def limits(limiter: StoreLimiter) -> Families:
    """Reservations of limits, and outages of Redis."""
    yield GaugeMetricFamily(
        "lorikeet_limits_reservations", "Live reservations.", value=limiter.reservations
    )
    yield GaugeMetricFamily(
        "lorikeet_limits_degraded", "1 while Redis is down.", value=limiter.degraded
    )
    yield CounterMetricFamily(
        "lorikeet_limits_degraded_decisions",
        "Requests decided without Redis, refused ones included.",
        value=limiter.degraded_decisions,
    )
    yield CounterMetricFamily(
        "lorikeet_limits_redis_failures",
        "Exchanges with Redis that failed.",
        value=limiter.redis_failures,
    )


DRIFT = {
    "requests": ("lorikeet_drift_requests", "Requests that the ledger lacks; 0 is right."),
    "tokens": ("lorikeet_drift_tokens", "Tokens that the ledger lacks; 0 is right."),
    "unjournaled_tokens": (
        "lorikeet_unjournaled_tokens",
        "Output tokens that the engine's journal lacks; 0 is right.",
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
        "Share of tenants that may be on the new revision, in percent.", lambda one: one.weight
    ),
    "paused": ("1 while an operator has paused it.", lambda one: one.paused),
    "overdue_seconds": (
        "For how much longer it stays at its weight than planned.", lambda one: one.overdue_s
    ),
    "untried_adapters": (
        "Live adapters that are to be tried on the new revision next.",
        lambda one: one.report.get("untried", 0),
    ),
}  # fmt: skip
ROLLOUT_SIDES: Mapping[str, tuple[str, str]] = {
    "error_percent": ("Requests that failed lately, in percent.", "error_percent"),
    "ttft_p95_seconds": ("Of the times to first tokens lately.", "ttft_p95_s"),
}
"""The figures that guards compare: the metric's text, and the figure's name in
`tenants.rollouts.progress`."""


def rollouts(open: Sequence[UnderWay], ended: Sequence[Ended]) -> Families:
    """The progress of rollouts, the figures that their guards see, and their outcomes."""
    for name, (text, value) in ROLLOUT_GAUGES.items():
        family = GaugeMetricFamily(f"lorikeet_rollout_{name}", text, labels=["base_model"])
        for one in open:
            family.add_metric([one.base_model], value(one))
        yield family
    tenants = GaugeMetricFamily(
        "lorikeet_rollout_tenants",
        "Tenants on the `new` revision, on the `present` ones, and those there that stay `behind`, "
        "as an adapter failed on the new one.",
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
        "Rollouts that ended: `finished`, `aborted`, or `rolled_back` by a guard.",
        ["base_model", "outcome"],
        counts,
    )


BATCH_GAUGES: Mapping[str, tuple[str, Callable[[Standing], float]]] = {
    "batches": ("Batches that have not ended.", lambda one: one.batches),
    "batch_lines": ("Lines of batches that have no answers yet.", lambda one: one.lines),
    "batch_oldest_seconds": (
        "Since the first of the batches in this state was made; 0: there is none.",
        lambda one: one.oldest_s,
    ),
}


def batches(found: Sequence[Standing]) -> Families:
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
        "Responses of the background that have not ended.",
        labels=["status"],
    )
    oldest = GaugeMetricFamily(
        "lorikeet_background_oldest_seconds",
        "Since the first of the responses in this state was asked for; 0: there is none.",
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
        "Free on the disk that this process's folder (LORIKEET_VAR) is on.",
        value=free_bytes,
    )
    yield GaugeMetricFamily("lorikeet_disk_bytes", "The size of that disk.", value=total_bytes)


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


def _exemplar(example: Example) -> Exemplar:
    return Exemplar({"trace_id": example.trace_id}, example.value, example.at)
