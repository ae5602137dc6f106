"""ASGI's lifespan, as both planes have it: what lives as long as the process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack

import structlog

from inference.gateway.exchange import Receive, Scope, Send

log = structlog.get_logger(__name__)


class Lifespan(ABC):
    """The server tells it when to start and when to stop, and is told whether it started."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        async with AsyncExitStack() as stack:
            try:
                await self.start(stack)
            except Exception as error:
                log.exception("start_failed")
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @abstractmethod
    async def start(self, stack: AsyncExitStack) -> None:
        """Start it; the stack has what stops it."""
