"""`/healthz` (load generators use `/health`), `/readyz` and, on gateways, `/fleetz`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from inference.errors import MethodNotAllowed
from inference.gateway.exchanges.exchange import Exchange, Receive, Scope, Send

Checks = Mapping[str, Callable[[], Awaitable[bool]]]
"""By name of what each checks."""


class Health:
    """`/healthz`: this process runs. `/readyz`: it can do its own work, else what it lacks; this is
    for load balancers. `/fleetz`: what all processes of its kind share is available; a load
    balancer that used this one would drop all of them at once."""

    def __init__(self, checks: Checks, fleet: Checks | None = None) -> None:
        self._checks = {"/readyz": checks, "/fleetz": fleet or {}}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            exchange.require_method("GET", "HEAD")
        except MethodNotAllowed as error:
            return await exchange.fail(error)
        if exchange.path in ("/healthz", "/health"):
            return await exchange.reply(200, b'{"status":"ok"}')
        found = {name: await check() for name, check in self._checks[exchange.path].items()}
        ready = all(found.values())
        body = {"status": "ready" if ready else "not ready", "checks": found}
        await exchange.reply(200 if ready else 503, msgspec.json.encode(body))
