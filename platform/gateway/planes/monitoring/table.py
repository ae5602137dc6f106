"""The table of the metrics of `/metrics`: name, type, explanation, labels, and where each is read.
docs/observe.md lists them.

Metrics of shared state (engines, pools, drift) are the same from each gateway, so take their `max`
over gateways; all others cover only this process, and add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from inference.gateway.measuring.measures import OF_ENGINES
from inference.gateway.requests.journey import MoveReason, MoveResult
from inference.gateway.routing.engine_state import EngineState
from tenants.batches.figures import BatchStanding, InBackground
from tenants.billing.drift import Drift
from tenants.billing.ledger import Ledger
from tenants.limits.kinds import KINDS
from tenants.limits.limiter import StoreLimiter
from tenants.limits.refusals import SCOPES
from tenants.rollouts.figures import EndedCounts, UnderWay
from tenants.tuning.figures import TuningStanding


@dataclass(frozen=True, slots=True)
class MetricSources:
    """What the metrics are read from."""

    hub: Hub
    engines: Sequence[EngineState]
    pools: Mapping[str, Mapping[str, float]]
    """FIGURES of each base model; empty while the other gateways' demand is unknown."""
    ledger: Ledger
    limiter: StoreLimiter
    drift: Sequence[Drift]
    rollouts: Sequence[UnderWay]
    ended_rollouts: Sequence[EndedCounts]
    batches: Sequence[BatchStanding]
    in_background: Sequence[InBackground]
    tuning: Sequence[TuningStanding]
    disk_bytes: int
    """The size of the disk that this process's folder is on."""
    disk_free_bytes: int


Samples = Iterable[tuple[Iterable[Any], Any]]
"""Label values and the number, or the Histogram, that has them."""
Read = Callable[[MetricSources], Samples]


def _number(value: Callable[[MetricSources], float]) -> Read:
    return lambda sources: [((), value(sources))]


def _counts(counts: Callable[[MetricSources], Mapping[Any, float]]) -> Read:
    """Numbers by the tuple of their labels."""
    return lambda sources: counts(sources).items()


def _by_engine(value: Callable[[EngineState], float]) -> Read:
    return lambda sources: [((one.id, one.info.name), value(one)) for one in sources.engines]


def _by_pool(name: str) -> Read:
    return lambda sources: [
        ((pool,), found[name]) for pool, found in sources.pools.items() if name in found
    ]


def _on_engines(name: str) -> Read:
    return lambda sources: (
        ((base_model, engine), histogram)
        for base_model, engine, histogram in sources.hub.measures.histograms(name)
    )


def _by_journal(value: Callable[[Drift], float]) -> Read:
    return lambda sources: [
        ((one.journal.engine_id, one.journal.journal), value(one)) for one in sources.drift
    ]


def _by_rollout(value: Callable[[UnderWay], float]) -> Read:
    return lambda sources: [((one.base_model,), value(one)) for one in sources.rollouts]


def _parts_of_rollouts(parts: Callable[[UnderWay], Iterable[tuple[str, float]]]) -> Read:
    return lambda sources: [
        ((one.base_model, part), value) for one in sources.rollouts for part, value in parts(one)
    ]


def _by_status(value: Callable[[BatchStanding], float]) -> Read:
    return lambda sources: [((one.status,), value(one)) for one in sources.batches]


def _in_background(value: Callable[[InBackground], float]) -> Read:
    return lambda sources: [((one.status,), value(one)) for one in sources.in_background]


def _tuning(value: Callable[[TuningStanding], float]) -> Read:
    return lambda sources: [((one.status,), value(one)) for one in sources.tuning]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric, `lorikeet_<name>`."""

    name: str
    family: type[Any]
    text: str
    read: Read
    labels: tuple[str, ...] = ()

    def collect(self, sources: MetricSources) -> Metric:
        """The metric with its present values."""
        family = self.family(f"lorikeet_{self.name}", self.text, labels=self.labels)
        for labels, value in self.read(sources):
            if isinstance(value, Histogram):
                family.add_metric(labels, _buckets(value), value.total)
            else:
                family.add_metric(labels, value)
        metric: Metric = family
        return metric


GAUGE, COUNTER, HISTOGRAM = GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily
ENGINE = ("engine", "base_model")
JOURNAL = ("engine", "journal")
POOL = ("base_model",)

# fmt: off
METRICS: Sequence[MetricRow] = (
    # What the connected engines report.
    MetricRow("engine_running", GAUGE, "Requests running on the engine.",
        _by_engine(lambda one: one.stats.running), ENGINE),
    MetricRow("engine_waiting", GAUGE, "Requests in vLLM's own queue.",
        _by_engine(lambda one: one.stats.waiting), ENGINE),
    MetricRow("engine_queued", GAUGE, "Requests in the agent's fair queue.",
        _by_engine(lambda one: one.stats.queued), ENGINE),
    MetricRow("engine_queued_tokens", GAUGE,
        "Prompt tokens still to be computed of requests that have no output yet.",
        _by_engine(lambda one: one.stats.queued_tokens), ENGINE),
    MetricRow("engine_kv_usage", GAUGE, "Fraction of KV blocks in use, 0 to 1.",
        _by_engine(lambda one: one.stats.kv_usage), ENGINE),
    MetricRow("engine_kv_tokens", GAUGE, "Capacity of the KV cache in tokens.",
        _by_engine(lambda one: one.info.kv_tokens), ENGINE),
    MetricRow("engine_adapter_slots", GAUGE, "Adapters that can run at the same time.",
        _by_engine(lambda one: one.info.max_loras), ENGINE),
    MetricRow("engine_adapters_active", GAUGE,
        "Adapters with running requests, which occupy slots.",
        _by_engine(lambda one: len(one.stats.active)), ENGINE),
    MetricRow("engine_adapters_awaited", GAUGE,
        "Adapters whose requests wait for a slot or for loading; at most 64.",
        _by_engine(lambda one: len(one.stats.awaited)), ENGINE),
    MetricRow("engine_adapters_resident", GAUGE,
        "Adapters loaded on the engine, running or not.",
        _by_engine(lambda one: len(one.resident)), ENGINE),
    MetricRow("engine_adapters_spare", GAUGE,
        "Adapters that could be loaded without evicting another one.",
        _by_engine(lambda one: one.stats.spare), ENGINE),
    MetricRow("engine_draining", GAUGE,
        "1 while the engine drains and accepts no new requests.",
        _by_engine(lambda one: float(one.draining)), ENGINE),
    MetricRow("engine_asleep", GAUGE,
        "1 while the engine sleeps and its device's memory is free.",
        _by_engine(lambda one: float(one.stats.asleep)), ENGINE),
    MetricRow("engine_journal_unbilled_requests", GAUGE,
        "Ended requests in the engine's journal that no gateway has acknowledged.",
        _by_engine(lambda one: one.stats.unbilled.requests), ENGINE),
    MetricRow("engine_journal_unbilled_tokens", GAUGE, "Output tokens of these requests.",
        _by_engine(lambda one: one.stats.unbilled.completion_tokens), ENGINE),
    MetricRow("engine_prompt_tokens", COUNTER, "Prompt tokens since the engine started.",
        _by_engine(lambda one: one.stats.prompt_tokens), ENGINE),
    MetricRow("engine_cached_tokens", COUNTER,
        "Prompt tokens found in the prefix cache since the engine started.",
        _by_engine(lambda one: one.stats.cached_tokens), ENGINE),
    MetricRow("engine_completion_tokens", COUNTER, "Output tokens since the engine started.",
        _by_engine(lambda one: one.stats.completion_tokens), ENGINE),
    MetricRow("engine_failures", COUNTER,
        "How often the engine's core died or hung, counted across restarts.",
        _by_engine(lambda one: one.stats.failures), ENGINE),
    MetricRow("engine_refused_suspects", COUNTER,
        "Requests refused because they made engines fail twice.",
        _by_engine(lambda one: one.stats.refused_suspects), ENGINE),

    # The demand for each base model over the whole fleet.
    *(MetricRow(f"pool_{name}", GAUGE, text, _by_pool(name), POOL)
        for name, text in FIGURES.items()),

    # How long this gateway's requests took, and how they ended.
    *(MetricRow(name, HISTOGRAM, text, _on_engines(name), ("base_model", "engine"))
        for name, (text, _) in OF_ENGINES.items()),
    MetricRow("hold_seconds", HISTOGRAM,
        "How long requests were held at the gateway because no engine could take them; "
        "only held requests.",
        lambda sources: (
            ((base_model,), histogram)
            for base_model, histogram in sources.hub.measures.hold_seconds.items()
        ), POOL),
    MetricRow("requests", COUNTER,
        "Inference requests by outcome (`completed`, `cancelled`, `refused` or `failed`) "
        "and by finish reason or error code.",
        _counts(lambda sources: sources.hub.measures.requests),
        ("base_model", "engine", "outcome", "code")),
    MetricRow("refusals", COUNTER,
        "Requests that a limit refused, by the limit's kind and scope.",
        _counts(lambda sources:
            dict.fromkeys(product(KINDS, SCOPES.values()), 0) | sources.hub.measures.refusals),
        ("kind", "scope")),
    MetricRow("engines_lost", COUNTER, "Engines that disconnected without announcing it.",
        lambda sources: (
            ((base_model,), count)
            for base_model, count in sources.hub.measures.engines_lost.items()
        ), POOL),
    MetricRow("overflowed_requests", COUNTER,
        "Requests sent to overflow engines, whose servers are outside of this installation.",
        lambda sources: (
            ((base_model,), count)
            for base_model, count in sources.hub.overflow.requests.items()
        ), POOL),
    MetricRow("prefilled_prompts", COUNTER,
        "Prompts sent to prefill engines, by what became of them.",
        _counts(lambda sources: sources.hub.prefill.prompts), ("base_model", "outcome")),
    MetricRow("tenant_requests", COUNTER,
        "Requests of the busiest tenants (LORIKEET_METRICS_TENANTS) and of all others.",
        _counts(lambda sources: sources.hub.measures.busiest.requests), ("tenant", "outcome")),
    MetricRow("tenant_tokens", COUNTER,
        "Tokens of the busiest tenants and of all others together, by kind: `prompt` "
        "or `output`.",
        _counts(lambda sources: sources.hub.measures.busiest.tokens), ("tenant", "kind")),

    # Requests in flight, moves, and what the hub has dropped or quarantined.
    MetricRow("moves", COUNTER,
        "Requests that had to leave their engine before they were complete, by reason and outcome.",
        _counts(lambda sources:
            dict.fromkeys(product(MoveReason, MoveResult), 0) | sources.hub.moves),
        ("reason", "outcome")),
    MetricRow("answers_adopted", COUNTER,
        "Running answers of other gateways that this one took over.",
        _number(lambda sources: sources.hub.adopted)),
    MetricRow("move_gap_seconds", HISTOGRAM,
        "How long clients of streams that moved to another engine waited for the next token.",
        lambda sources: [((), sources.hub.gaps)]),
    MetricRow("streams", GAUGE, "Requests in flight.",
        _number(lambda sources: sources.hub.in_flight)),
    MetricRow("refused_suspects", GAUGE,
        "Requests that are refused because they made engines fail twice.",
        _number(lambda sources: len(sources.hub.refused_suspects))),
    MetricRow("requests_crashed", COUNTER,
        "Errors in the handling of requests, each of which ended its own request alone.",
        _number(lambda sources: sources.hub.crashed)),
    MetricRow("link_unknown_frames", COUNTER,
        "Frames from engines with a type that this version does not know.",
        _number(lambda sources: sources.hub.unknown_frames)),
    MetricRow("ledger_quarantined", COUNTER,
        "Ended requests that engines reported but that no gateway had dispatched to them.",
        _number(lambda sources: sources.hub.intake.quarantined)),
    MetricRow("outcomes_dropped", COUNTER,
        "Requests missing from the console's history because the database was unavailable "
        "for too long.",
        _number(lambda sources: sources.hub.outcomes.dropped)),
    MetricRow("structured_answers", COUNTER,
        "Finished answers that should follow a JSON schema, or call tools, by whether they do: "
        "conformed, malformed, or unchecked.",
        _counts(lambda sources: sources.hub.measures.structures),
        ("base_model", "outcome")),
    MetricRow("content_dropped", COUNTER,
        "Requests whose content should have been stored but was not, for lack of memory "
        "or of the database.",
        _number(lambda sources: sources.hub.contents.dropped)),

    # Entries waiting for the ledger, and entries written.
    MetricRow("ledger_waiting", GAUGE, "Ended requests waiting to be written to the ledger.",
        _number(lambda sources: sources.ledger.waiting)),
    MetricRow("ledger_written", COUNTER, "Ended requests written to the ledger.",
        _number(lambda sources: sources.ledger.written)),
    MetricRow("ledger_unbillable", COUNTER,
        "Ended requests that the ledger refused and that were logged instead.",
        _number(lambda sources: sources.ledger.unbillable)),
    MetricRow("ledger_turned_away", COUNTER,
        "Ended requests turned away for lack of memory; their engines send them again.",
        _number(lambda sources: sources.ledger.turned_away)),
    MetricRow("regenerated_tokens", COUNTER,
        "Output tokens of lost engines that other engines generated again.",
        _number(lambda sources: sources.ledger.regenerated_tokens)),

    # Reservations of limits, and outages of Redis.
    MetricRow("limits_reservations", GAUGE, "Live reservations.",
        _number(lambda sources: sources.limiter.reservations)),
    MetricRow("limits_degraded", GAUGE, "1 while Redis is unavailable.",
        _number(lambda sources: sources.limiter.degraded)),
    MetricRow("limits_degraded_decisions", COUNTER,
        "Requests admitted or refused without Redis.",
        _number(lambda sources: sources.limiter.degraded_decisions)),
    MetricRow("limits_redis_failures", COUNTER, "Failed calls of Redis.",
        _number(lambda sources: sources.limiter.redis_failures)),

    # Usage in engines' journals that the ledger lacks.
    MetricRow("drift_requests", GAUGE, "Requests missing from the ledger; should be 0.",
        _by_journal(lambda one: one.requests), JOURNAL),
    MetricRow("drift_tokens", GAUGE, "Tokens missing from the ledger; should be 0.",
        _by_journal(lambda one: one.tokens), JOURNAL),
    MetricRow("unjournaled_tokens", GAUGE,
        "Output tokens missing from the engine's journal; should be 0.",
        _by_journal(lambda one: one.unjournaled_tokens), JOURNAL),

    # The progress of rollouts, the figures that their guards compare, and their outcomes.
    MetricRow("rollout_weight", GAUGE,
        "Percentage of tenants that may be on the new revision.",
        _by_rollout(lambda one: one.weight), POOL),
    MetricRow("rollout_paused", GAUGE, "1 while the rollout is paused.",
        _by_rollout(lambda one: one.paused), POOL),
    MetricRow("rollout_overdue_seconds", GAUGE,
        "Seconds by which the rollout has exceeded the planned time at its weight.",
        _by_rollout(lambda one: one.overdue_s), POOL),
    MetricRow("rollout_untried_adapters", GAUGE,
        "Live adapters to be tested on the new revision before the next step.",
        _by_rollout(lambda one: one.report.get("untried", 0)), POOL),
    MetricRow("rollout_tenants", GAUGE,
        "Tenants on the `new` revision, on the `present` ones, and those that stay "
        "`behind` because an adapter failed on the new one.",
        _parts_of_rollouts(lambda one: one.tenants()), ("base_model", "place")),
    MetricRow("rollout_error_percent", GAUGE, "Percentage of recent requests that failed.",
        _parts_of_rollouts(lambda one: one.guarded("error_percent")), ("base_model", "revision")),
    MetricRow("rollout_ttft_p95_seconds", GAUGE,
        "95th percentile of recent times to first token.",
        _parts_of_rollouts(lambda one: one.guarded("ttft_p95_s")), ("base_model", "revision")),
    MetricRow("rollouts", COUNTER,
        "Rollouts that ended, by outcome: `finished`, `aborted`, or `rolled_back` by a guard.",
        lambda sources: (
            ((one.base_model, outcome), count)
            for one in sources.ended_rollouts for outcome, count in one.outcomes()
        ), ("base_model", "outcome")),

    # Unfinished batches and background responses.
    MetricRow("batches", GAUGE, "Unfinished batches.",
        _by_status(lambda one: one.batches), ("status",)),
    MetricRow("batch_lines", GAUGE, "Requests of unfinished batches that have no answer yet.",
        _by_status(lambda one: one.lines), ("status",)),
    MetricRow("batch_oldest_seconds", GAUGE,
        "Age of the oldest batch in this state; 0 if there is none.",
        _by_status(lambda one: one.oldest_s), ("status",)),
    MetricRow("background_responses", GAUGE, "Unfinished background responses.",
        _in_background(lambda one: one.responses), ("status",)),
    MetricRow("background_oldest_seconds", GAUGE,
        "Age of the oldest background response in this state; 0 if there is none.",
        _in_background(lambda one: one.oldest_s), ("status",)),
    MetricRow("tuning_jobs", GAUGE, "Unfinished fine-tuning jobs.",
        _tuning(lambda one: one.jobs), ("status",)),
    MetricRow("tuning_oldest_seconds", GAUGE,
        "Age of the oldest fine-tuning job in this state; 0 if there is none.",
        _tuning(lambda one: one.oldest_s), ("status",)),

    MetricRow("disk_free_bytes", GAUGE,
        "Free space on the disk of this process's folder (LORIKEET_VAR).",
        _number(lambda sources: sources.disk_free_bytes)),
    MetricRow("disk_bytes", GAUGE, "Size of that disk.",
        _number(lambda sources: sources.disk_bytes)),
)
# fmt: on


def _buckets(histogram: Histogram) -> list[Any]:
    return [
        (bound, count) if example is None else (bound, count, _exemplar(example))
        for bound, count, example in histogram.buckets()
    ]


def _exemplar(example: HistogramExample) -> Exemplar:
    return Exemplar({"trace_id": example.trace_id}, example.value, example.at)
