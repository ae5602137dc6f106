"""`GET /metrics`: this gateway process's metrics for Prometheus, which `table` defines.

Prometheus's text format, or OpenMetrics with exemplars if that is requested. Requires
LORIKEET_METRICS_TOKEN as the bearer; without that setting the page does not exist.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.planes.monitoring.table import METRICS, MetricSources
from inference.errors import InferenceError, NotFound, Unavailable
from inference.gateway.exchanges.exchange import Exchange, Receive, Scope, Send
from inference.gateway.fleet.demand import FleetDemand
from inference.gateway.hub import Hub
from tenants.batches.figures import (
    IN_BACKGROUND,
    RUNNING,
    STANDING,
    UNFINISHED,
    BatchStanding,
    InBackground,
)
from tenants.billing.drift import JOURNALS, LATELY, Drift, DriftedJournal
from tenants.billing.ledger import Ledger
from tenants.database import Database
from tenants.limits.limiter import StoreLimiter
from tenants.rollouts import figures as rollouts
from tenants.rollouts.figures import EndedCounts, UnderWay
from tenants.tuning import figures as tuning
from tenants.tuning.figures import TuningStanding

R = TypeVar("R")


class MetricsPage:
    """The ASGI application."""

    def __init__(
        self,
        token: str,
        hub: Hub,
        ledger: Ledger,
        limiter: StoreLimiter,
        database: Database,
        demand: FleetDemand,
        folder: Path,
    ) -> None:
        """Without a `token` every request is refused. `folder` is on the disk to report."""
        self._token, self._demand, self._folder = token, demand, folder
        self._hub, self._ledger, self._limiter = hub, ledger, limiter
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            exchange.require_method("GET", "HEAD")
            self._require_token(exchange)
        except InferenceError as error:
            return await exchange.fail(error)
        encode, content_type = choose_encoder(dict(scope["headers"]).get(b"accept", b"").decode())
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Page(await self._collected()))
        await exchange.begin(200, [(b"content-type", content_type.encode())])
        await exchange.write(encode(registry), more=False)

    def _require_token(self, exchange: Exchange) -> None:
        if not self._token:
            raise NotFound("Metrics are available only if LORIKEET_METRICS_TOKEN is set.")
        exchange.require_token(self._token, "LORIKEET_METRICS_TOKEN")

    async def _collected(self) -> list[Metric]:
        engines, now = self._hub.engines(), time.monotonic()
        self._hub.measures.forget({(one.info.name, one.id) for one in engines}, now)
        disk = await asyncio.to_thread(shutil.disk_usage, self._folder)
        sources = MetricSources(
            self._hub,
            engines,
            self._pools(now),
            self._ledger,
            self._limiter,
            await self._drift(),
            await self._rows(UnderWay, rollouts.OPEN),
            await self._rows(EndedCounts, rollouts.ENDED),
            await self._rows(BatchStanding, STANDING, [UNFINISHED]),
            await self._rows(InBackground, IN_BACKGROUND, [RUNNING]),
            await self._rows(TuningStanding, tuning.STANDING, [tuning.UNFINISHED]),
            disk.total,
            disk.free,
        )
        return [row.collect(sources) for row in METRICS]

    def _pools(self, now: float) -> Mapping[str, Mapping[str, float]]:
        """Nothing while this gateway does not know the other gateways' demand."""
        try:
            return self._demand.figures(now)
        except Unavailable:
            return {}

    async def _drift(self) -> list[Drift]:
        now = datetime.now(UTC)
        return [
            Drift.of(one, now) for one in await self._rows(DriftedJournal, JOURNALS, [now - LATELY])
        ]

    async def _rows(self, kind: type[R], query: str, values: Sequence[Any] = ()) -> list[R]:
        """Empty while the database is away."""
        try:
            return await self._database.rows(kind, query, values)
        except Unavailable:
            return []


class _Page(Collector):
    """The collected metrics, for the library's encoder."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
