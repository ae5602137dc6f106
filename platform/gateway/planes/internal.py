"""`/internal/...`: the API for consoles, which authenticate with the INTERNAL_TOKEN."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.errors import InferenceError, NotFound, Unavailable
from inference.gateway.exchanges.exchange import Exchange, Receive, Scope, Send, parse_json
from inference.gateway.hub import Hub
from inference.gateway.measuring.history import History
from inference.interfaces.directory import Limits
from tenants.fleet.reports import CountedReport, GatewayReport
from tenants.limits.limiter import StoreLimiter

MAX_BODY_BYTES = 16 << 10


class _Drain(msgspec.Struct):
    engine: str


class Internal:
    """The ASGI application."""

    def __init__(self, token: str, hub: Hub, limiter: StoreLimiter, history: History) -> None:
        self._token = token
        self._hub, self._limiter, self._history = hub, limiter, history
        self._ways = {
            ("GET", "/internal/fleet"): self._fleet,
            ("GET", "/internal/history"): self._points,
            ("POST", "/internal/limits"): self._used,
            ("POST", "/internal/drain"): self._drain,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            exchange.require_token(self._token, "LORIKEET_INTERNAL_TOKEN")
            way = self._ways.get((exchange.method, exchange.path))
            if way is None:
                if allowed := [way for way, path in self._ways if path == exchange.path]:
                    exchange.require_method(*allowed)
                raise NotFound("There is no resource at this URL.")
            await exchange.reply(200, msgspec.json.encode(await way(exchange)))
        except InferenceError as error:
            await exchange.fail(error)

    async def _fleet(self, exchange: Exchange) -> GatewayReport:
        hub, rates = self._hub, self._history.rates()
        failures = hub.start_failures.recent()
        return GatewayReport(hub.snapshot(), rates, self._limiter.degraded, failures)

    async def _points(self, exchange: Exchange) -> Any:
        return self._history.points()

    async def _used(self, exchange: Exchange) -> CountedReport:
        limits = parse_json(Limits, await exchange.body(MAX_BODY_BYTES))
        try:
            used = await self._limiter.used(limits)
        except Unavailable:
            used = {}
        return CountedReport(self._limiter.shared, used)

    async def _drain(self, exchange: Exchange) -> dict[str, bool]:
        wanted = parse_json(_Drain, await exchange.body(MAX_BODY_BYTES))
        found = any(engine["id"] == wanted.engine for engine in self._hub.snapshot())
        self._hub.drain(wanted.engine)
        return {"found": found}
