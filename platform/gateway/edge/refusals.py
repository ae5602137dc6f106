"""Delays refusals to clients that are refused repeatedly, such as those guessing keys or passwords.

A guess costs its sender nothing, and this process a database query or a page. So refusals to an
address that is mostly refused are spaced out (`inference.pacing`); a connection has one
request at a time, so its next guess comes later as well. Accepted requests are never delayed, not
even from the same address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

from inference.addresses import network_of
from inference.gateway.exchanges.exchange import Receive, Scope, Send
from inference.pacing import Pacing


class SlowRefusals:
    """Wraps an application; must itself be wrapped by TrueAddress, which sets the client's address
    in the scope."""

    def __init__(self, app: Any, statuses: Collection[int]) -> None:
        """Answers with these HTTP `statuses` are refusals."""
        self._app, self._statuses, self._pacing = app, frozenset(statuses), Pacing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] != "http" or client is None:
            await self._app(scope, receive, send)
            return

        async def sending(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                now, sender = time.monotonic(), network_of(client[0])
                if message["status"] not in self._statuses:
                    self._pacing.note(sender, now, refused=False)
                elif hold_s := self._pacing.hold_s(sender, now):
                    await asyncio.sleep(hold_s)
            await send(message)

        await self._app(scope, receive, sending)
