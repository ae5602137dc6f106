"""`GET /metrics`: what this gateway process knows, in Prometheus's text format.

Only with METRICS_TOKEN as the bearer; without that setting there is no such page. Engines, pools
and drift are everybody's, so the same from each gateway; the rest is this process's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference.errors import InferenceError, NotFound, Unavailable
from inference.gateway.exchange import Exchange, Receive, Scope, Send
from inference.gateway.fleet.demand import FIGURES, FleetDemand
from inference.gateway.fleet.hub import Hub
from tenants.billing.drift import JOURNALS, LATELY, Drift, Journal
from tenants.billing.ledger import Ledger
from tenants.database import Database
from tenants.limits.limiter import StoreLimiter

TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
ENGINE_GAUGES = {
    "running": "Requests that run on the engine.",
    "waiting": "Requests in vLLM's own queue.",
    "queued": "Requests in the agent's fair queue.",
    "kv_usage": "Share of KV blocks in use, 0 to 1.",
}
ENGINE_COUNTERS = {
    "prompt_tokens": "Prompt tokens since the engine started.",
    "cached_tokens": "Prompt tokens that the prefix cache held.",
    "completion_tokens": "Output tokens since the engine started.",
    "failures": "Times that the engine's core died or hung, over restarts.",
    "refused_suspects": "Requests refused because engines had failed with them twice.",
}


class Metrics:
    """The ASGI application."""

    def __init__(
        self,
        token: str,
        hub: Hub,
        ledger: Ledger,
        limiter: StoreLimiter,
        database: Database,
        demand: FleetDemand,
    ) -> None:
        """Without a `token` nobody is answered."""
        self._token, self._demand = token, demand
        self._hub, self._ledger, self._limiter = hub, ledger, limiter
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            exchange.require_method("GET", "HEAD")
            self._require_token(exchange)
        except InferenceError as error:
            return await exchange.fail(error)
        page = _Page(
            [
                *self._engines(),
                *self._pools(),
                *self._moves(),
                *self._ledger_and_limits(),
                *await _reconciliation(self._database),
            ]
        )
        registry = CollectorRegistry(auto_describe=False)
        registry.register(page)
        await exchange.begin(200, TEXT)
        await exchange.write(generate_latest(registry), more=False)

    def _require_token(self, exchange: Exchange) -> None:
        if not self._token:
            raise NotFound("Metrics are shown where METRICS_TOKEN is set.")
        exchange.require_token(self._token, "METRICS_TOKEN")

    def _engines(self) -> Iterator[Metric]:
        engines = self._hub.snapshot()
        labels = ["engine", "base_model"]
        for name, text in ENGINE_GAUGES.items():
            yield _filled(GaugeMetricFamily(f"lorikeet_engine_{name}", text, labels=labels),
                          engines, name)  # fmt: skip
        for name, text in ENGINE_COUNTERS.items():
            yield _filled(CounterMetricFamily(f"lorikeet_engine_{name}", text, labels=labels),
                          engines, name)  # fmt: skip

    def _pools(self) -> Iterator[Metric]:
        """The whole fleet's, so the same from each gateway; nothing while this one can't know."""
        try:
            pools = self._demand.figures(time.monotonic())
        except Unavailable:
            return
        for name, text in FIGURES.items():
            family = GaugeMetricFamily(f"lorikeet_pool_{name}", text, labels=["base_model"])
            for pool, figures in pools.items():
                if name in figures:
                    family.add_metric([pool], figures[name])
            yield family

    def _moves(self) -> Iterator[Metric]:
        moves = CounterMetricFamily(
            "lorikeet_moves",
            "Requests that their engine did not bring to their end, and what became of them.",
            labels=["reason", "outcome"],
        )
        for (why, outcome), count in self._hub.moves.items():
            moves.add_metric([why, outcome], count)
        yield moves
        yield CounterMetricFamily(
            "lorikeet_answers_adopted",
            "Running answers of other gateways that this one went on with.",
            value=self._hub.adopted,
        )
        gaps = self._hub.gaps
        yield HistogramMetricFamily(
            "lorikeet_move_gap_seconds",
            "How long readers of streams that moved waited.",
            buckets=gaps.buckets(),
            sum_value=gaps.total_s,
        )

    def _ledger_and_limits(self) -> Iterator[Metric]:
        ledger, limiter = self._ledger, self._limiter
        yield GaugeMetricFamily(
            "lorikeet_streams", "Requests in flight.", value=self._hub.in_flight
        )
        yield GaugeMetricFamily(
            "lorikeet_refused_suspects",
            "Requests that are refused because engines failed with them twice.",
            value=len(self._hub.refused_suspects),
        )
        yield CounterMetricFamily(
            "lorikeet_link_unknown_frames",
            "Frames of engines that only newer versions know.",
            value=self._hub.unknown_frames,
        )
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
            "lorikeet_ledger_quarantined",
            "Ended requests that engines reported and no gateway dispatched to them.",
            value=self._hub.quarantined,
        )
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


def _filled(family: Any, engines: list[dict[str, Any]], name: str) -> Metric:
    for engine in engines:
        family.add_metric([engine["id"], engine["base_model"]], engine[name])
    metric: Metric = family
    return metric


async def _reconciliation(database: Database) -> list[Metric]:
    """Counted by the engines' journals and missing in the ledger; nothing while it is away."""
    now = datetime.now(UTC)
    try:
        journals = await database.rows(Journal, JOURNALS, [now - LATELY])
    except Unavailable:
        return []
    labels = ["engine", "journal"]
    families = {
        "requests": GaugeMetricFamily(
            "lorikeet_drift_requests", "Requests that the ledger lacks; 0 is right.", labels=labels
        ),
        "tokens": GaugeMetricFamily(
            "lorikeet_drift_tokens", "Tokens that the ledger lacks; 0 is right.", labels=labels
        ),
        "unjournaled_tokens": GaugeMetricFamily(
            "lorikeet_unjournaled_tokens",
            "Output tokens that the engine's journal lacks; 0 is right.",
            labels=labels,
        ),
    }
    for drift in (Drift.of(journal, now) for journal in journals):
        for name, family in families.items():
            journal = drift.journal
            family.add_metric([journal.engine_id, journal.journal], getattr(drift, name))
    return list(families.values())


class _Page(Collector):
    """What was collected, for the library's writer."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
