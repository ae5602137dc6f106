"""Who is refused again and again, as one who guesses keys or passwords is, hears it later.

A guess costs its sender nothing and this process a look at the database, or a page. So the answers
to an address that is mostly refused are spaced (`inference.gateway.pacing`); a connection has one
request at a time, so its next guess comes later as well. Whoever is let in is never held up, from
the same address neither.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

from inference.addresses import network_of
from inference.gateway.exchange import Receive, Scope, Send
from inference.gateway.pacing import Pacing


class SlowRefusals:
    """Around an application, inside what puts the client's address into the scope."""

    def __init__(self, app: Any, statuses: Collection[int]) -> None:
        """`statuses` of HTTP answers are refusals."""
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
