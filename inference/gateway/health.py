"""`/healthz`, which load generators call `/health`, and `/readyz`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from inference.errors import MethodNotAllowed
from inference.gateway.exchange import Exchange, Receive, Scope, Send


class Health:
    """`/healthz`: this process runs. `/readyz`: everything it needs is there, or what is not."""

    def __init__(self, checks: dict[str, Callable[[], Awaitable[bool]]]) -> None:
        """`checks` by the name of what they check."""
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            exchange.require_method("GET", "HEAD")
        except MethodNotAllowed as error:
            return await exchange.fail(error)
        if exchange.path in ("/healthz", "/health"):
            return await exchange.reply(200, b'{"status":"ok"}')
        found = {name: await check() for name, check in self._checks.items()}
        ready = all(found.values())
        body = {"status": "ready" if ready else "not ready", "checks": found}
        await exchange.reply(200 if ready else 503, msgspec.json.encode(body))
