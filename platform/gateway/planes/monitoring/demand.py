"""`GET /demand`: the demand for the whole fleet, in JSON, for autoscalers of engines.

Requires LORIKEET_METRICS_TOKEN as the bearer; without it the page does not exist. `?pool=NAME`
returns one base model, with zeros if there is no demand for it, as for a pool whose engines are all
stopped. KEDA's `metrics-api` reads that; `scaledown`, which marks the idlest engine to be stopped
first, reads `engines`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec
import structlog

from inference.errors import InferenceError, NotFound, Unavailable
from inference.gateway.exchanges.exchange import Exchange, Receive, Scope, Send
from inference.gateway.fleet.demand import Demand, FleetDemand
from inference.gateway.hub import Hub
from tenants.directory.registry import DirectoryRegistry

log = structlog.get_logger(__name__)

SHARE_S = 1.0
"""How often gateways exchange their demand; autoscalers ask less often."""


class DemandPage:
    """The ASGI application."""

    def __init__(self, token: str, hub: Hub, demand: FleetDemand) -> None:
        """Without a `token` every request is refused."""
        self._token, self._hub, self._demand = token, hub, demand

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            exchange.require_method("GET", "HEAD")
            if not self._token:
                raise NotFound("Demand is available only if LORIKEET_METRICS_TOKEN is set.")
            exchange.require_token(self._token, "LORIKEET_METRICS_TOKEN")
            asked = parse_qs(scope["query_string"].decode("latin-1")).get("pool")
            answer = self._pool(asked[0]) if asked else self._fleet()
            await exchange.reply(200, msgspec.json.encode(answer))
        except InferenceError as error:
            await exchange.fail(error)

    def _pool(self, pool: str) -> Mapping[str, Any]:
        demand = self._demand.pools(time.monotonic()).get(pool, Demand())
        return {"pool": pool, **self._demand.figures_of(pool, demand)}

    def _fleet(self) -> Mapping[str, Any]:
        return {
            "pools": self._demand.figures(time.monotonic()),
            "engines": [
                {
                    "id": engine.id,
                    "pool": engine.info.name,
                    "load": engine.load,
                    "draining": engine.draining,
                }
                for engine in self._hub.engines()
                if engine.info.serves
            ],
        }


async def share(demand: FleetDemand, hub: Hub, registry: DirectoryRegistry) -> None:
    """Periodically exchange demand with the other gateways, until cancelled."""
    while True:
        demand.completion_rate.note(hub.engines(), time.monotonic())
        try:
            others = await registry.share_demand(hub.gateway_id, demand.own())
            demand.set_others(others, time.monotonic())
        except Unavailable as error:
            log.warning("demand_not_shared", error=str(error))
        await asyncio.sleep(SHARE_S)
