"""What the ASGI applications of both planes are made of: routes, and a lifespan, which starts and
stops what lives as long as the process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import Any

import structlog
from django.urls import URLPattern, re_path

from inference.gateway.exchanges.exchange import Receive, Scope, Send

log = structlog.get_logger(__name__)


def route(pattern: str, app: Any) -> URLPattern:
    """Channels' router takes ASGI applications where Django's types expect views."""
    made: URLPattern = re_path(pattern, app)
    return made


class Lifespan(ABC):
    """Handles the server's startup and shutdown messages, and reports a failed start."""

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
        """Start everything, and push what stops it onto the stack."""
